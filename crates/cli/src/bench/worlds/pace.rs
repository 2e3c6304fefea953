//! How long the runs of Fig. 12 will still take.
//!
//! A run takes the longer, the more bytes its flows send and the more links these pass: that is its
//! work. How fast a way is simulated is known from its last run; of one that has not run yet, from
//! the others.

/// The runs of all ways with one number of servers after the other.
pub(super) struct Pace {
    /// By number of servers: the work of a way.
    work: Vec<f64>,
    /// By way: seconds for a unit of work, in its last run.
    rates: Vec<Option<f64>>,
    /// Runs so far.
    done: usize,
}

impl Pace {
    /// Before the first run of so many ways.
    pub(super) fn new(work: Vec<f64>, ways: usize) -> Pace {
        Pace { work, rates: vec![None; ways], done: 0 }
    }

    /// Notes how long the next run has taken.
    pub(super) fn ran(&mut self, seconds: f64) {
        let (size, way) = (self.done / self.rates.len(), self.done % self.rates.len());
        self.rates[way] = Some(seconds / self.work[size].max(1.0));
        self.done += 1;
    }

    /// About how many seconds the other runs will take; `None` before the first.
    pub(super) fn left(&self) -> Option<f64> {
        let ways = self.rates.len();
        let known: Vec<f64> = self.rates.iter().flatten().copied().collect();
        let usual = known.iter().sum::<f64>() / known.len() as f64;
        let runs = self.done..self.work.len() * ways;
        let of = |run: usize| self.work[run / ways] * self.rates[run % ways].unwrap_or(usual);
        // The sum of nothing would be minus zero.
        (!known.is_empty()).then(|| runs.map(of).fold(0.0, |sum, more| sum + more))
    }
}

/// A time of some seconds, for people.
pub(super) fn about(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_has_run() {
        let mut pace = Pace::new(vec![10.0, 100.0], 2);
        assert_eq!(pace.left(), None);
        pace.ran(1.0);
        // The second way is thought to be as fast as the first.
        assert_eq!(pace.left(), Some(1.0 + 10.0 + 10.0));
        pace.ran(3.0);
        assert_eq!(pace.left(), Some(10.0 + 30.0));
        pace.ran(20.0);
        assert_eq!(pace.left(), Some(30.0));
        pace.ran(30.0);
        assert_eq!(pace.left().map(about), Some("0 s".into()));
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!([5.4, 600.0, 7200.0].map(about), ["5 s", "10 min", "2.0 h"]);
    }
}
