"""Reports of compiled programs in Poplar's layout, and PopVision's library to read them."""
