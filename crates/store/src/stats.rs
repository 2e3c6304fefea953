//! What the store counts.
