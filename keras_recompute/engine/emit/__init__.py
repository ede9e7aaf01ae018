"""Programs written into the caller's graph, behind custom gradients."""
