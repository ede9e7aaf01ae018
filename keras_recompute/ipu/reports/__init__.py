"""Reports of compiled programs, as Poplar writes them, and PopVision's library that reads them."""
