//! The store over TCP, in the protocols that clients already speak.
