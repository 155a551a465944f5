"""How the compressed gradients of all ranks become one average, whatever the engine."""
