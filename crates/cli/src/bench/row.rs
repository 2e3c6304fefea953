//! A row: one figure of Remora and of a peer, measured several times in turn, so that a disturbance
//! of the machine affects both.

use std::borrow::Cow;

use anyhow::{Context, Result};
use serde::Serialize;

/// Measures one way once.
pub(super) type Run<'a> = Box<dyn FnMut() -> Result<f64> + 'a>;

/// One thing to measure, on Remora and on a peer.
pub(super) struct Case<'a> {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) peer: &'static str,
    pub(super) target: Target,
    pub(super) ours: Run<'a>,
    pub(super) theirs: Run<'a>,
}

impl<'a> Case<'a> {
    /// A case whose figures are latencies in µs.
    pub(super) fn latency(
        name: &'static str,
        peer: &'static str,
        target: Target,
        ours: Run<'a>,
        theirs: Run<'a>,
    ) -> Case<'a> {
        Case { name, unit: "µs", peer, target, ours, theirs }
    }
}

/// The target of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// At most this much more than the peer's figure, in the row's unit.
    AtMostMore(f64),
    /// At most this, in the row's unit, whatever the peer's figure.
    Within(f64),
    /// No target.
    Any,
}

impl Target {
    /// Do the medians meet the target? `None` if there is no target, or no peer that it is about.
    pub(super) fn is_met(self, ratio: f64, ours: f64, peer: f64) -> Option<bool> {
        match self {
            Target::AtMost(_) | Target::AtLeast(_) if ratio.is_nan() => None,
            Target::AtMostMore(_) if peer.is_nan() => None,
            Target::AtMost(limit) => Some(ratio <= limit),
            Target::AtLeast(limit) => Some(ratio >= limit),
            Target::AtMostMore(limit) => Some(ours <= peer + limit),
            Target::Within(limit) => Some(ours <= limit),
            Target::Any => None,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtMost(limit) => write!(f, "≤ {limit} ×"),
            Target::AtLeast(limit) => write!(f, "≥ {limit} ×"),
            Target::AtMostMore(limit) => write!(f, "≤ {limit} more"),
            Target::Within(limit) => write!(f, "≤ {limit}"),
            Target::Any => write!(f, "–"),
        }
    }
}

/// The results of several runs of one side; not a number where the side is not there.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Spread {
    /// The spread of `runs`, of which there is at least one.
    pub(super) fn of(mut runs: Vec<f64>) -> Spread {
        runs.sort_by(f64::total_cmp);
        let middle = runs.len() / 2;
        let median = if runs.len() % 2 == 1 {
            runs[middle]
        } else {
            f64::midpoint(runs[middle - 1], runs[middle])
        };
        Spread { min: runs[0], median, max: runs[runs.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.median.is_nan() {
            return write!(f, "–");
        }
        write!(f, "{:.3} ({:.3}–{:.3})", self.median, self.min, self.max)
    }
}

/// The peer's side of a row.
#[derive(Debug, Serialize)]
pub(super) struct PeerSide {
    pub(super) name: Cow<'static, str>,
    #[serde(flatten)]
    pub(super) spread: Spread,
}

/// A line of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: Cow<'static, str>,
    pub(super) unit: &'static str,
    pub(super) ours: Spread,
    pub(super) peer: PeerSide,
    pub(super) ratio: f64,
    #[serde(skip)]
    pub(super) target: Target,
}

impl Row {
    /// A row beside one figure of a peer: not a number where the peer is not there.
    pub(super) fn beside(
        name: impl Into<Cow<'static, str>>,
        unit: &'static str,
        ours: Spread,
        (peer, figure): (&'static str, f64),
        target: Target,
    ) -> Row {
        let peer = PeerSide { name: peer.into(), spread: Spread::of(vec![figure]) };
        Row { name: name.into(), unit, ours, ratio: ours.median / figure, peer, target }
    }

    /// A row that no peer has a figure for.
    pub(super) fn alone(
        name: impl Into<Cow<'static, str>>,
        unit: &'static str,
        ours: Spread,
    ) -> Row {
        Row::beside(name, unit, ours, ("nothing", f64::NAN), Target::Any)
    }

    /// The ratio in words; a dash if the peer is not there.
    pub(super) fn ratio(&self) -> String {
        if self.ratio.is_nan() { "–".to_owned() } else { format!("{:.2}", self.ratio) }
    }

    /// Whether the target is met; empty if there is none.
    pub(super) fn verdict(&self) -> &'static str {
        match self.target.is_met(self.ratio, self.ours.median, self.peer.spread.median) {
            None => "",
            Some(true) => "met",
            Some(false) => "missed",
        }
    }
}

/// Runs both sides in turn, `runs` times each.
pub(super) fn measure(case: Case<'_>, runs: usize) -> Result<Row> {
    let Case { name, unit, peer, target, ours: mut our_way, theirs: mut their_way } = case;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(our_way().with_context(|| format!("cannot measure {name}"))?);
        theirs.push(their_way().with_context(|| format!("cannot measure {name}"))?);
    }
    let ours = Spread::of(ours);
    let peer = PeerSide { name: peer.into(), spread: Spread::of(theirs) };
    let name = name.into();
    Ok(Row { name, unit, ours, ratio: ours.median / peer.spread.median, peer, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_documented_json_form() {
        let mut values = [3.0, 1.0, 2.0].into_iter();
        let case = Case {
            name: "row",
            unit: "µs",
            peer: "other",
            target: Target::AtMost(1.0),
            ours: Box::new(move || Ok(values.next().unwrap())),
            theirs: Box::new(|| Ok(4.0)),
        };
        let row = measure(case, 3).unwrap();
        assert_eq!(row.verdict(), "met");
        let expected = serde_json::json!({
            "name": "row", "unit": "µs", "ratio": 0.5,
            "ours": {"min": 1.0, "median": 2.0, "max": 3.0},
            "peer": {"name": "other", "min": 4.0, "median": 4.0, "max": 4.0},
        });
        assert_eq!(serde_json::to_value(&row).unwrap(), expected);
        let row = Row { target: Target::AtMostMore(-2.0), ..row };
        assert_eq!(row.verdict(), "met");
        let row = Row { target: Target::AtMostMore(-2.5), ..row };
        assert_eq!(row.verdict(), "missed");
        let row = Row { target: Target::Within(2.0), ..row };
        assert_eq!((row.verdict(), row.target.to_string()), ("met", "≤ 2".into()));
        let row = Row { target: Target::Within(1.9), ..row };
        assert_eq!(row.verdict(), "missed");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
    }
}
