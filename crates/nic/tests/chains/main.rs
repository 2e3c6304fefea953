//! Tests of a card alone. Of chains: the three orders, the verbs of loop-back, limits, hostile
//! chains. Of kernels: those that are bound, and the room for answers.

mod answers;
mod hostile;
mod limits;
mod orders;
#[path = "../support/ram.rs"]
mod ram;
mod rig;
mod taps;
mod verbs;
