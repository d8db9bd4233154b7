"""The trained model for another engine, which must prove to give the same results before its folder is written."""
