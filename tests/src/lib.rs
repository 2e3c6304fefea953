//! What the tests against real peers are made of.
//!
//! The peer is a virtual machine whose kernel has Linux's soft-RoCE driver (`scripts/rxe-vm.sh`
//! makes it, [`machine`] boots it). It sits at the far end of a wire ([`wire`]) that the tests own
//! and may cut, in a network namespace of their own ([`namespace`]), so that no privilege is needed
//! and nothing of the host is touched. On both sides there is an [`end`]: a program of verbs calls,
//! driven call by call, either over any libibverbs ([`program`]) or over the crate `remora`
//! ([`native`]).
//!
//! A failure is a panic with the reason: these are tests.

pub mod end;
pub mod machine;
pub mod namespace;
pub mod native;
pub mod program;
pub mod wire;
