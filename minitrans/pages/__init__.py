"""What pages share: the frame and style of `verify --report` and `explain`, heat maps, masks, and line charts."""
