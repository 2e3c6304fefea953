//! Which items go when memory is short.
