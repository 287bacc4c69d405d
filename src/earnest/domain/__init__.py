"""Values, states and rules of Earnest: no input or output, no clock reads, no SQL."""
