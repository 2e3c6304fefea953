//! Chains: what their three orders show, what the verbs of loop-back do, what bounds them, and
//! what hostile ones come to.

mod hostile;
mod limits;
mod orders;
mod rig;
mod taps;
mod verbs;
