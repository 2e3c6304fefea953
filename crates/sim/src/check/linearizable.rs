//! Whether a history of one key can have happened one operation after the other (Wing and Gong's
//! search, with the states that were tried remembered, as porcupine does).

use std::collections::{BTreeSet, HashSet};

use super::{STEPS_MAX, Violation, demand, undecided};

/// What a client has done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Answers the value; 0 if there is none.
    Get,
    /// Makes it this, and answers it.
    Put(u64),
    /// Adds to the value, and answers the sum.
    Add(u64),
}

/// One operation. A client that never heard an answer does not know whether it has happened.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The key.
    pub key: u8,
    /// What was to be done.
    pub kind: Kind,
    /// When the client asked for it.
    pub invoked_ns: u64,
    /// When it had the answer, if it had one.
    pub answered_ns: Option<u64>,
    /// What it was told.
    pub answer: u64,
}

impl Operation {
    /// The value afterwards, if the answer is right where the value was `state`.
    fn step(&self, state: u64) -> Option<u64> {
        let (after, answer) = match self.kind {
            Kind::Get => (state, state),
            Kind::Put(value) => (value, value),
            Kind::Add(more) => (state + more, state + more),
        };
        (self.answered_ns.is_none() || answer == self.answer).then_some(after)
    }
}

/// Fails unless there is an order for each key, which begins as 0.
///
/// # Panics
/// More than 128 operations are of one key.
pub fn check(history: &[Operation]) -> Result<(), Violation> {
    let keys: BTreeSet<u8> = history.iter().map(|operation| operation.key).collect();
    for key in keys {
        let matters = |operation: &&Operation| {
            operation.key == key && (operation.kind != Kind::Get || operation.answered_ns.is_some())
        };
        let mut operations: Vec<_> = history.iter().filter(matters).copied().collect();
        operations.sort_by_key(|operation| operation.invoked_ns);
        let found = is_linearizable(&operations, STEPS_MAX);
        demand(found == Some(true), "linearizable", || {
            let lines: String = operations.iter().map(|op| format!("\n{op:?}")).collect();
            match found {
                None => format!("what was done to key {key} {}:{lines}", undecided()),
                Some(_) => format!("no order of what was done to key {key} explains it:{lines}"),
            }
        })?;
    }
    Ok(())
}

/// Whether there is an order, if that is found out in so many steps.
fn is_linearizable(operations: &[Operation], steps: u64) -> Option<bool> {
    assert!(operations.len() <= 128, "a history of {} operations", operations.len());
    let bit = |index: usize| 1u128 << index;
    let answered = (0..operations.len()).filter(|index| operations[*index].answered_ns.is_some());
    let needed: u128 = answered.map(bit).sum();
    let (mut seen, mut stack) = (HashSet::new(), vec![(0u128, 0u64)]);
    while let Some((done, state)) = stack.pop() {
        if done & needed == needed {
            return Some(true);
        }
        if !seen.insert((done, state)) {
            continue;
        }
        if seen.len() as u64 > steps {
            return None;
        }
        let rest = || (0..operations.len()).filter(|index| done & bit(*index) == 0);
        let first_end = rest().filter_map(|index| operations[index].answered_ns).min();
        // Whatever began before anything else had ended may be the next.
        for index in rest().rev() {
            let operation = &operations[index];
            if first_end.is_some_and(|end| operation.invoked_ns > end) {
                continue;
            }
            if let Some(after) = operation.step(state) {
                stack.push((done | bit(index), after));
            }
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(kind: Kind, invoked_ns: u64, answered_ns: u64, answer: u64) -> Operation {
        let answered_ns = (answered_ns > 0).then_some(answered_ns);
        Operation { key: 1, kind, invoked_ns, answered_ns, answer }
    }

    #[test]
    fn a_read_may_see_a_write_at_the_same_time_and_not_miss_an_earlier_one() {
        let put = operation(Kind::Put(5), 10, 20, 5);
        assert!(check(&[put, operation(Kind::Get, 15, 18, 5)]).is_ok());
        assert!(check(&[put, operation(Kind::Get, 15, 18, 0)]).is_ok());
        assert!(check(&[put, operation(Kind::Get, 21, 22, 0)]).is_err());
        assert!(check(&[put, operation(Kind::Get, 5, 9, 5)]).is_err());
    }

    #[test]
    fn what_was_not_answered_happens_once_or_never() {
        let open = operation(Kind::Add(3), 10, 0, 0);
        assert!(check(&[open, operation(Kind::Get, 20, 21, 0)]).is_ok());
        assert!(check(&[open, operation(Kind::Get, 20, 21, 3)]).is_ok());
        assert!(check(&[open, operation(Kind::Get, 20, 21, 6)]).is_err());
        let reads = [operation(Kind::Get, 20, 21, 3), operation(Kind::Get, 22, 23, 0)];
        assert!(check(&[open, reads[0], reads[1]]).is_err());
    }

    #[test]
    fn what_takes_too_long_is_not_decided() {
        let history = [operation(Kind::Put(5), 10, 20, 5), operation(Kind::Get, 15, 18, 5)];
        assert_eq!(is_linearizable(&history, 2), Some(true));
        assert_eq!(is_linearizable(&history, 1), None);
    }
}
