"""The part of a recurrent layer that does not depend on the state: all input products in large GEMMs."""
