//! Chains: what their three orders show, what the verbs of loop-back do, what bounds them, and
//! what hostile ones come to.

#![allow(unreachable_pub, reason = "what the modules share")]

mod limits;
mod orders;
mod rig;
mod verbs;
