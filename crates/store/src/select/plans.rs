//! Plans that are kept: a client that asks the same again does not wait for a plan again.

use std::sync::Arc;

use thiserror::Error;

use super::plan::{Plan, PlanError};
use super::recent::Recent;
use super::selection::Selection;
use super::wire::WireError;

/// The most plans that are kept. With regular expressions of the largest size each, and as many
/// pieces of patterns as there may be, they have about 40 MiB.
pub const PLANS_MAX: usize = 16;

/// Plans by the bytes of their selections.
#[derive(Clone, Debug)]
pub struct Plans(Recent<Arc<Planned>>);

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

impl Default for Plans {
    fn default() -> Plans {
        Plans::new()
    }
}

impl Plans {
    /// No plans yet.
    pub const fn new() -> Plans {
        Plans(Recent::new(PLANS_MAX))
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
        self.0.find(bytes)
    }

    /// Keeps what these bytes stand for.
    pub fn keep(&mut self, bytes: &[u8], planned: Planned) -> Arc<Planned> {
        let planned = Arc::new(planned);
        self.0.keep(bytes, planned.clone());
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
        }
        let mut kept = |limit| plans.find(&bytes(limit)).is_some();
        assert!(kept(0) && kept(99) && !kept(1));
    }

    #[test]
    fn what_is_refused_is_not_kept() {
        let mut plans = Plans::default();
        assert_eq!(plans.get(&[]).unwrap_err(), PlanRefused::Wire(WireError::CutOff));
        assert!(plans.find(&[]).is_none());
    }
}
