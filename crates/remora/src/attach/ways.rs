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
    /// (`is_others`) may not use `process_vm`, and `/proc/mem` only if its policy says so.
    pub(super) fn of(&self, access: Access, is_kept: bool, is_others: bool) -> Vec<Way> {
        match &self.0 {
            Some(ways) => ways.clone(),
            None if is_others => vec![Way::Convert, Way::ProcMem],
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
        assert_eq!(ways.of(Access::empty(), false, true), [Way::ProcMem, Way::Convert]);
        assert_eq!("mmap".parse::<Ways>(), Err(UnknownWay("mmap".into())));
        assert!("".parse::<Ways>().is_err());
        let usual = Ways::default();
        assert_eq!(usual.of(Access::REMOTE_READ, false, false), [Way::ProcessVm]);
        let others = usual.of(Access::REMOTE_READ, false, true);
        assert_eq!(others, [Way::Convert, Way::ProcMem], "such a daemon refuses process_vm");
        for (access, is_kept) in [(Access::REMOTE_ATOMIC, false), (Access::empty(), true)] {
            assert_eq!(usual.of(access, is_kept, false), [Way::Convert, Way::ProcessVm]);
            assert_eq!(usual.of(access, is_kept, true), [Way::Convert, Way::ProcMem]);
        }
    }
}
