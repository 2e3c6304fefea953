//! The store's operations.
