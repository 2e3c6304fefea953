//! Plans that are kept: a client that asks the same again does not wait for a plan again.

use std::sync::Arc;

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
    planned: Arc<Planned>,
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
pub enum PlanRefused {
    /// Its bytes are no selection.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Planned {
    /// The selection of these bytes, and its plan.
    ///
    /// # Errors
    /// The bytes are no selection, or it has no plan.
    pub fn new(bytes: &[u8]) -> Result<Planned, PlanRefused> {
        let selection = Selection::parse(bytes)?;
        let plan = Plan::new(&selection)?;
        Ok(Planned { selection, plan })
    }
}

impl Plans {
    /// No plans yet.
    pub const fn new() -> Plans {
        Plans { kept: Vec::new(), now: 0 }
    }

    /// The selection of these bytes and its plan, kept or made now.
    ///
    /// # Errors
    /// The bytes are no selection, or it has no plan.
    pub fn get(&mut self, bytes: &[u8]) -> Result<Arc<Planned>, PlanRefused> {
        match self.find(bytes) {
            Some(planned) => Ok(planned),
            None => Ok(self.keep(bytes, Planned::new(bytes)?)),
        }
    }

    /// The selection of these bytes and its plan, if it is kept.
    pub fn find(&mut self, bytes: &[u8]) -> Option<Arc<Planned>> {
        self.now += 1;
        let kept = self.kept.iter_mut().find(|kept| *kept.bytes == *bytes)?;
        kept.used = self.now;
        Some(kept.planned.clone())
    }

    /// Keeps what these bytes stand for.
    pub fn keep(&mut self, bytes: &[u8], planned: Planned) -> Arc<Planned> {
        let (used, planned) = (self.now, Arc::new(planned));
        let kept = Kept { bytes: bytes.into(), used, planned: planned.clone() };
        if self.kept.len() < PLANS_MAX {
            self.kept.push(kept);
        } else if let Some(oldest) = self.kept.iter_mut().min_by_key(|kept| kept.used) {
            *oldest = kept;
        }
        planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::condition::RowCondition;
    use crate::select::selection::Output;

    fn bytes(limit: u64) -> Vec<u8> {
        let (condition, output) = (RowCondition::ALWAYS, Output::Whole);
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
        assert_eq!(plans.get(&[]).unwrap_err(), PlanRefused::Wire(WireError::CutOff));
        assert!(plans.kept.is_empty());
    }
}
