//! Plans that are kept: a client that asks the same again does not wait for a plan again.

use thiserror::Error;

use super::plan::{Plan, PlanError};
use super::selection::Selection;
use super::wire::WireError;

/// The most plans that are kept. With regular expressions of the largest size each, they have
/// about 32 MiB.
pub const PLANS_MAX: usize = 16;

/// Plans by the bytes of their selections. The one that was not used for the longest time makes
/// room for a new one.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    kept: Vec<Kept>,
    /// Counts uses.
    now: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    bytes: Box<[u8]>,
    used: u64,
    planned: Planned,
}

/// A selection and its plan.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What is asked.
    pub selection: Selection,
    /// How it is found.
    pub plan: Plan,
}

/// Why a request for rows is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refused {
    /// Its bytes are no selection.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Plans {
    /// The selection of these bytes and its plan, kept or made now.
    ///
    /// # Errors
    /// The bytes are no selection, or it has no plan.
    pub fn get(&mut self, bytes: &[u8]) -> Result<&Planned, Refused> {
        self.now += 1;
        let at = match self.kept.iter().position(|kept| *kept.bytes == *bytes) {
            Some(at) => at,
            None => self.make(bytes)?,
        };
        self.kept[at].used = self.now;
        Ok(&self.kept[at].planned)
    }

    /// Makes a plan, and says where it is kept.
    fn make(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let selection = Selection::parse(bytes)?;
        let plan = Plan::new(&selection)?;
        let kept = Kept { bytes: bytes.into(), used: 0, planned: Planned { selection, plan } };
        if self.kept.len() < PLANS_MAX {
            self.kept.push(kept);
            return Ok(self.kept.len() - 1);
        }
        let oldest = self.kept.iter().enumerate().min_by_key(|(_, kept)| kept.used);
        let at = oldest.map_or(0, |(at, _)| at);
        self.kept[at] = kept;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::condition::Condition;
    use crate::select::selection::Output;

    fn bytes(limit: u64) -> Vec<u8> {
        let (condition, output) = (Condition::ALWAYS, Output::Whole);
        Selection { row_least: 0, condition, output, limit }.to_bytes().unwrap()
    }

    #[test]
    fn plans_are_kept_and_the_oldest_makes_room() {
        let mut plans = Plans::default();
        for limit in 0..100 {
            assert_eq!(plans.get(&bytes(limit)).unwrap().selection.limit, limit);
            assert_eq!(plans.get(&bytes(0)).unwrap().selection.limit, 0);
            assert!(plans.kept.len() <= PLANS_MAX);
        }
        let kept = |limit: u64| plans.kept.iter().any(|kept| *kept.bytes == *bytes(limit));
        assert!(kept(0) && kept(99) && !kept(1));
    }

    #[test]
    fn what_is_refused_is_not_kept() {
        let mut plans = Plans::default();
        assert_eq!(plans.get(&[]).unwrap_err(), Refused::Wire(WireError::CutOff));
        assert!(plans.kept.is_empty());
    }
}
