//! Tests of chains: the three orders, the verbs of loop-back, limits, hostile chains, and bound
//! kernels.

mod hostile;
mod limits;
mod orders;
mod rig;
mod taps;
mod verbs;
