//! A value of a model with its unit and with where it comes from.

use core::fmt;

/// The unit of a [`Parameter`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Picoseconds, shown as nanoseconds.
    Time,
    /// Bytes.
    Bytes,
    /// Bytes in a second, shown as GB/s.
    PerSecond,
    /// A number of things.
    Count,
}

/// How well a value is founded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ground {
    /// The evaluated paper says so, in words.
    Paper,
    /// A specification, a data sheet, a product guide or source code says so.
    Document,
    /// Somebody else has measured it, on another machine.
    Measured,
    /// It follows from others by a thought that may be wrong, and that the figures test.
    Hypothesis,
    /// Nothing says so; it is of the usual size.
    Assumed,
}

/// A value, and where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// What it is.
    pub name: &'static str,
    /// How much, in the unit.
    pub value: u64,
    /// The unit.
    pub unit: Unit,
    /// How well founded.
    pub ground: Ground,
    /// By what.
    pub source: &'static str,
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ground::Paper => "paper",
            Ground::Document => "document",
            Ground::Measured => "measured",
            Ground::Hypothesis => "hypothesis",
            Ground::Assumed => "assumed",
        })
    }
}

impl Parameter {
    /// The value with its unit, for people.
    pub fn shown(&self) -> String {
        match self.unit {
            Unit::Time => format!("{} ns", self.value as f64 / 1e3),
            Unit::Bytes => format!("{} B", self.value),
            Unit::PerSecond => format!("{} GB/s", self.value as f64 / 1e9),
            Unit::Count => self.value.to_string(),
        }
    }
}
