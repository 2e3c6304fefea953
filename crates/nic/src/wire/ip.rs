//! The outer headers, as bytes.
