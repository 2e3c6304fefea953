//! What lies where in the store's memory.
