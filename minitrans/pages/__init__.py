"""What the pages of `verify --report` and `explain` share: their frame and style, heat maps, and pictures of masks."""
