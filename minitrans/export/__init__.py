"""The trained model for another engine, proved to give the same before it is written."""
