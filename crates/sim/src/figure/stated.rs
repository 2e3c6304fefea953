//! What the paper's text states about its figures, and how far the simulated ones are from it.

use core::fmt;

use super::{Drawn, FIGURES};

/// Where on a line the paper states a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// At its highest point.
    Peak,
    /// At this size in bytes.
    Size(u64),
    /// At its end: "saturates".
    End,
}

/// A statement: a line of a figure is from `low` to `high` there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stated {
    /// The figure's number.
    pub figure: u32,
    /// The line, by its place in the figure.
    pub line: usize,
    /// Where on it.
    pub at: At,
    /// In 10⁹ bytes per second.
    pub low: f64,
    /// In 10⁹ bytes per second; `low` if the paper states one value.
    pub high: f64,
}

const fn stated(figure: u32, line: usize, at: At, low: f64, high: f64) -> Stated {
    Stated { figure, line, at, low, high }
}

/// All statements, in the paper's order.
pub const STATED: &[Stated] = &[
    stated(8, 0, At::Size(1 << 20), 7.54, 7.54),
    stated(8, 1, At::Size(1 << 20), 7.77, 7.77),
    stated(9, 0, At::Peak, 10.7, 10.8),
    stated(9, 1, At::Peak, 10.0, 10.0),
    stated(9, 2, At::Peak, 10.0, 10.0),
    stated(9, 3, At::Peak, 10.0, 10.0),
    stated(9, 1, At::End, 9.0, 10.0),
    stated(9, 2, At::End, 9.0, 10.0),
    stated(9, 3, At::End, 9.0, 10.0),
    stated(10, 0, At::Peak, 11.8, 12.0),
    stated(10, 1, At::Peak, 13.0, 14.0),
    stated(10, 2, At::Peak, 13.0, 14.0),
    stated(10, 3, At::Peak, 13.0, 14.0),
    stated(11, 0, At::Peak, 9.4, 9.5),
    stated(12, 0, At::Peak, 9.4, 9.5),
    stated(12, 1, At::Peak, 13.0, 14.0),
    stated(12, 2, At::Peak, 13.0, 14.0),
    stated(12, 3, At::Peak, 13.0, 14.0),
    stated(13, 0, At::Peak, 9.2, 9.2),
    stated(13, 1, At::End, 9.0, 9.0),
    stated(13, 2, At::End, 9.0, 9.0),
    stated(13, 3, At::End, 9.0, 9.0),
    stated(14, 1, At::End, 10.5, 12.0),
    stated(14, 2, At::Peak, 12.0, 13.0),
    stated(14, 3, At::Peak, 12.0, 13.0),
    stated(15, 0, At::Peak, 9.0, 10.0),
    stated(15, 1, At::Peak, 9.0, 10.0),
    stated(15, 2, At::Peak, 9.0, 10.0),
    stated(17, 0, At::Peak, 12.0, 13.0),
    stated(17, 1, At::Peak, 12.0, 13.0),
    stated(17, 2, At::Peak, 12.0, 13.0),
];

impl Stated {
    /// The name of the line.
    ///
    /// # Panics
    /// If the statement is not one of [`STATED`].
    pub fn way(&self) -> &'static str {
        let figure = FIGURES.iter().find(|figure| figure.number == self.figure);
        figure.expect("a statement is about a figure").ways[self.line].0
    }

    /// The size, and the simulated value there; `None` if the figure is another or lacks the size.
    pub fn simulated(&self, drawn: &Drawn) -> Option<(u64, f64)> {
        let line = drawn.lines.get(self.line).filter(|_| drawn.figure.number == self.figure)?;
        let mut points = drawn.sizes.iter().copied().zip(line.iter().copied());
        match self.at {
            At::Peak => points.max_by(|a, b| a.1.total_cmp(&b.1)),
            At::Size(bytes) => points.find(|(size, _)| *size == bytes),
            At::End => points.next_back(),
        }
    }

    /// How far a value is from what is stated, in per cent; 0 within the range.
    pub fn difference(&self, value: f64) -> f64 {
        let nearest = value.clamp(self.low, self.high);
        (value / nearest - 1.0) * 100.0
    }
}

impl fmt::Display for Stated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low == self.high {
            write!(f, "{}", self.low)
        } else {
            write!(f, "{}–{}", self.low, self.high)
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Peak => f.write_str("peak"),
            At::Size(bytes) if bytes >> 20 > 0 => write!(f, "{} MiB", bytes >> 20),
            At::Size(bytes) => write!(f, "{bytes} B"),
            At::End => f.write_str("large"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_from_the_nearest_stated_value() {
        let range = stated(9, 1, At::End, 8.0, 10.0);
        assert_eq!(
            [6.0, 9.0, 11.0].map(|value| range.difference(value).round()),
            [-25.0, 0.0, 10.0]
        );
        for stated in STATED {
            assert!(!stated.way().is_empty() && stated.low <= stated.high);
        }
    }
}
