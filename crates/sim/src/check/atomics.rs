//! Atomics happen exactly once: checks that the original values that came back fit one history of
//! a word.
//!
//! In the history of a word that is only added to, each addition begins at the value where the one
//! before ended. The history of a word that is only swapped, each time to a value that is never
//! used again, is a chain of values. The outcome of an operation is unknown if its queue pair
//! failed; it may be part of the history or not.

use std::collections::{HashMap, HashSet};

use super::{Violation, demand};

const CHECKER: &str = "atomics";

/// The operations on one word.
#[derive(Clone, Debug, Default)]
pub struct History {
    adds: Vec<(u64, u64)>,
    unknown_adds: u64,
    swaps: Vec<Swap>,
    unknown_swaps: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Swap {
    original: u64,
    compare: u64,
    swap: u64,
}

impl History {
    /// Records a fetch-and-add that returned `original`.
    pub fn added(&mut self, original: u64, add: u64) {
        self.adds.push((original, add));
    }

    /// Records a fetch-and-add that failed and may have been executed.
    pub fn perhaps_added(&mut self, add: u64) {
        self.unknown_adds += add;
    }

    /// Records a compare-and-swap that returned `original`.
    pub fn swapped(&mut self, original: u64, compare: u64, swap: u64) {
        self.swaps.push(Swap { original, compare, swap });
    }

    /// Records a compare-and-swap that failed and may have been executed.
    pub fn perhaps_swapped(&mut self, compare: u64, swap: u64) {
        self.unknown_swaps.push((compare, swap));
    }

    /// Checks that all returned values fit one history from 0 to `last`.
    pub fn judge(&self, last: u64) -> Result<(), Violation> {
        if self.swaps.is_empty() && self.unknown_swaps.is_empty() {
            self.judge_adds(last)
        } else {
            self.judge_swaps(last)
        }
    }

    fn judge_adds(&self, last: u64) -> Result<(), Violation> {
        let mut adds = self.adds.clone();
        adds.sort_unstable();
        let (mut value, mut unexplained) = (0, 0);
        for (original, add) in adds.into_iter().chain([(last, 0)]) {
            demand(original >= value, CHECKER, || {
                format!("an addition began at {original}, inside another that ended at {value}")
            })?;
            unexplained += original - value;
            value = original + add;
        }
        demand(unexplained <= self.unknown_adds, CHECKER, || {
            let most = self.unknown_adds;
            format!(
                "{unexplained} was added by no known operation; failed ones explain at most {most}"
            )
        })
    }

    fn judge_swaps(&self, last: u64) -> Result<(), Violation> {
        let done = self.swaps.iter().filter(|s| s.original == s.compare);
        let mut next: HashMap<u64, u64> = HashMap::new();
        for s in done {
            let other = next.insert(s.original, s.swap);
            demand(other.is_none(), CHECKER, || {
                format!("the value {} was swapped for {} and for {other:?}", s.original, s.swap)
            })?;
        }
        let certain = next.len();
        // A swap with unknown outcome was executed if the history cannot continue without it.
        let mut unknown: HashMap<u64, Vec<u64>> = HashMap::new();
        for &(compare, swap) in &self.unknown_swaps {
            unknown.entry(compare).or_default().push(swap);
        }
        let mut values = HashSet::from([0]);
        let (mut value, mut met) = (0, 0);
        loop {
            if let Some(&swap) = next.get(&value) {
                met += 1;
                value = swap;
            } else if value == last {
                break;
            } else {
                let candidates = unknown.get(&value).cloned().unwrap_or_default();
                let leads_on =
                    |v: &u64| *v == last || next.contains_key(v) || unknown.contains_key(v);
                let chosen = candidates.iter().copied().find(leads_on);
                value = chosen.or(candidates.first().copied()).ok_or_else(|| {
                    Violation::new(
                        CHECKER,
                        format!("no operation swapped {value}, but the word holds {last}"),
                    )
                })?;
            }
            demand(values.insert(value), CHECKER, || format!("the value {value} came twice"))?;
        }
        demand(met == certain, CHECKER, || {
            format!("{} swaps that succeeded are not in the history", certain - met)
        })?;
        let stray = self.swaps.iter().find(|s| !values.contains(&s.original));
        demand(stray.is_none(), CHECKER, || {
            format!("an original value is not in the history: {stray:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_must_cover_the_total_once() {
        let mut h = History::default();
        h.added(5, 3);
        h.added(0, 5);
        assert_eq!(h.judge(8), Ok(()));
        assert!(h.judge(11).is_err(), "an addition executed twice must be found");
        h.perhaps_added(3);
        assert_eq!(h.judge(11), Ok(()));
        h.added(6, 1);
        assert!(h.judge(11).is_err(), "two additions with the same original must be found");
    }

    #[test]
    fn swaps_must_form_a_chain() {
        let mut h = History::default();
        h.swapped(0, 0, 10);
        h.swapped(20, 20, 30);
        h.swapped(10, 7, 99);
        assert!(h.judge(30).is_err(), "10 to 20 is missing");
        h.perhaps_swapped(10, 20);
        h.perhaps_swapped(10, 21);
        assert_eq!(h.judge(30), Ok(()));
        h.swapped(99, 1, 98);
        assert!(h.judge(30).is_err(), "an original that the word never held must be found");
    }
}
