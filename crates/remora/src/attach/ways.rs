//! By which ways the card of another process may reach the program's memory.

use std::str::FromStr;

use remora_nic::Access;
use thiserror::Error;

use crate::environment;

/// The environment variable that names the ways, the best first, separated by commas.
pub const MEMORY_VARIABLE: &str = "REMORA_MEMORY";

/// A way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
    /// The pages become a memory file that both processes have mapped.
    Convert,
    /// `process_vm_readv` and `process_vm_writev`.
    ProcessVm,
    /// `/proc/self/mem`, opened by the program and passed on.
    ProcMem,
}

/// Whose the process is that has the card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// This process's user, or the card is in another system.
    Same,
    /// Root, from whom nothing is hidden.
    Root,
    /// Anybody else.
    Other,
}

/// The ways that were asked for, if any were.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ways(Option<Vec<Way>>);

/// The environment names a way that there is none of.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{MEMORY_VARIABLE} names `{0}`: the ways are convert, process_vm and proc_mem")]
pub struct UnknownWay(String);

impl FromStr for Ways {
    type Err = UnknownWay;

    fn from_str(text: &str) -> Result<Ways, UnknownWay> {
        let way = |word: &str| match word.trim() {
            "convert" => Ok(Way::Convert),
            "process_vm" => Ok(Way::ProcessVm),
            "proc_mem" => Ok(Way::ProcMem),
            other => Err(UnknownWay(other.into())),
        };
        text.split(',').map(way).collect::<Result<_, _>>().map(|ways| Ways(Some(ways)))
    }
}

impl Ways {
    /// The ways that the environment names.
    pub(crate) fn from_environment() -> Result<Ways, UnknownWay> {
        match environment::text(MEMORY_VARIABLE) {
            text if text.is_empty() => Ok(Ways::default()),
            text => text.parse(),
        }
    }

    /// No way: the card is in another system, which reaches no memory of this one's.
    pub(super) fn none() -> Ways {
        Ways(Some(Vec::new()))
    }

    /// The ways for a region, the best first. Where nothing was asked for, memory is converted if
    /// peers may use atomics on it, or if it is to outlive the program. A daemon of another user
    /// may not use `process_vm`, and `/proc/mem` only if its policy says so. By that it can read
    /// and write all of this process, which only root may without being asked.
    pub(super) fn of(&self, access: Access, is_kept: bool, owner: Owner) -> Vec<Way> {
        match &self.0 {
            Some(ways) => ways.clone(),
            None if owner == Owner::Other => vec![Way::Convert],
            None if owner == Owner::Root => vec![Way::Convert, Way::ProcMem],
            None if is_kept || access.contains(Access::REMOTE_ATOMIC) => {
                vec![Way::Convert, Way::ProcessVm]
            }
            None => vec![Way::ProcessVm],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_tried_in_the_order_in_which_they_are_named() {
        let ways: Ways = "proc_mem, convert".parse().unwrap();
        for owner in [Owner::Same, Owner::Root, Owner::Other] {
            let named = ways.of(Access::empty(), false, owner);
            assert_eq!(named, [Way::ProcMem, Way::Convert]);
        }
        assert_eq!("mmap".parse::<Ways>(), Err(UnknownWay("mmap".into())));
        assert!("".parse::<Ways>().is_err());
        let usual = Ways::default();
        assert_eq!(usual.of(Access::REMOTE_READ, false, Owner::Same), [Way::ProcessVm]);
        let roots = usual.of(Access::REMOTE_READ, false, Owner::Root);
        assert_eq!(roots, [Way::Convert, Way::ProcMem], "such a daemon refuses process_vm");
        for (access, is_kept) in [(Access::REMOTE_ATOMIC, false), (Access::empty(), true)] {
            assert_eq!(usual.of(access, is_kept, Owner::Same), [Way::Convert, Way::ProcessVm]);
            assert_eq!(usual.of(access, is_kept, Owner::Root), [Way::Convert, Way::ProcMem]);
        }
    }

    /// By `/proc/mem` it would have all of the program's memory.
    #[test]
    fn a_daemon_of_another_user_is_let_at_nothing_but_the_region() {
        let usual = Ways::default();
        for access in [Access::REMOTE_READ, Access::REMOTE_ATOMIC] {
            for is_kept in [false, true] {
                assert_eq!(usual.of(access, is_kept, Owner::Other), [Way::Convert]);
            }
        }
    }
}
