//! What hears of every change.
