//! The parts of the tests against real peers.
//!
//! The peer is a virtual machine whose kernel has Linux's soft-RoCE driver (`scripts/rxe-vm.sh`
//! makes it, [`machine`] boots it). It is connected by a wire ([`wire`]) that the tests control and
//! may cut, in a network namespace of their own ([`namespace`]), so that the tests need no
//! privilege and change nothing on the host. On both sides there is an [`end`]: a program of verbs
//! calls that is driven call by call, either over any libibverbs ([`program`]) or over the crate
//! `remora` ([`native`]).
//!
//! Functions here panic with the reason of a failure, because they are for tests.

pub mod end;
pub mod machine;
pub mod namespace;
pub mod native;
pub mod program;
pub mod wire;
