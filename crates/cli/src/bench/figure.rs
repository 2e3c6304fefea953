//! A figure: the same work done in several ways, for several sizes.

use std::time::Instant;

use anyhow::Result;
use remora_sim::percentile;

use super::row::{PeerSide, Row, Run, Spread, Target};
use crate::draws::Pauses;
use crate::output;

/// Measures one way once, and returns the times of its calls in µs.
pub(super) type Calls<'a> = Box<dyn FnMut() -> Result<Vec<f64>> + 'a>;

/// The measurements for a figure of the paper.
#[derive(Debug)]
pub(super) struct Figure {
    /// `fig7`, for the names of rows.
    pub(super) id: &'static str,
    /// The paper and its figure: `StRoM’s Figure 7`.
    pub(super) origin: &'static str,
    pub(super) title: &'static str,
    /// What is measured, in a sentence or two.
    pub(super) about: &'static str,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) unit: &'static str,
    pub(super) style: Style,
    /// The ways; the first is Remora's.
    pub(super) ways: Vec<String>,
    pub(super) points: Vec<Point>,
    /// The paper's own result, where its text gives one.
    pub(super) paper: &'static str,
    /// This run's result on the same question.
    pub(super) here: String,
}

/// How a figure is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    /// Points joined by lines.
    Lines,
    /// Points joined by lines, with logarithmic values.
    Log,
    /// Bars, for places of the x axis that are not quantities.
    Bars,
}

/// The measurements at one place of the x axis.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) x: String,
    /// The results, one for each way.
    pub(super) ways: Vec<Spread>,
}

impl Point {
    /// Runs the ways in turn, `runs` times each.
    pub(super) fn measure(x: String, runs: usize, ways: &mut [Run<'_>]) -> Result<Point> {
        let mut values = vec![Vec::with_capacity(runs); ways.len()];
        for _ in 0..runs {
            for (way, values) in ways.iter_mut().zip(&mut values) {
                values.push(way()?);
            }
        }
        Ok(Point { x, ways: values.into_iter().map(Spread::of).collect() })
    }

    /// Runs the ways in turn, `runs` times each: the median of the runs' `middle`s, and the 1st and
    /// 99th percentile of all calls together, as StRoM's figures show them.
    pub(super) fn of_calls(
        x: String,
        runs: usize,
        ways: &mut [Calls<'_>],
        middle: fn(&[f64]) -> f64,
    ) -> Result<Point> {
        let mut taken = vec![(Vec::with_capacity(runs), Vec::new()); ways.len()];
        for _ in 0..runs {
            for (way, (middles, calls)) in ways.iter_mut().zip(&mut taken) {
                let run = way()?;
                middles.push(middle(&run));
                calls.extend(run);
            }
        }
        let ways = taken.into_iter().map(|(middles, mut calls)| {
            calls.sort_by(f64::total_cmp);
            let at = |per_mille| percentile(&calls, per_mille).unwrap_or(f64::NAN);
            Spread { min: at(10), median: median(&middles), max: at(990) }
        });
        Ok(Point { x, ways: ways.collect() })
    }

    /// The median of a way.
    pub(super) fn median(&self, way: usize) -> f64 {
        self.ways[way].median
    }
}

impl Figure {
    /// Prints it as a table.
    pub(super) fn show(&self) {
        println!("\n{} ({})", self.title, self.origin);
        let heading = |way: &String| format!("{way}, {}", self.unit);
        let headings = [self.x.to_owned()].into_iter().chain(self.ways.iter().map(heading));
        let mut table = output::table(headings);
        for point in &self.points {
            let figures = point.ways.iter().map(Spread::to_string);
            table.add_row([point.x.clone()].into_iter().chain(figures));
        }
        output::align_right(&mut table, 0..=self.ways.len());
        println!("{table}\npaper: {}\nhere:  {}", self.paper, self.here);
    }

    /// Remora's result beside each baseline, or alone if there is none, for each point.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.points.iter().flat_map(move |point| {
            let ours = point.ways[0];
            let name = format!("{}: {}", self.id, point.x);
            let alone = (point.ways.len() == 1).then(|| Row::alone(name.clone(), self.unit, ours));
            let beside = self.ways.iter().zip(&point.ways).skip(1);
            alone.into_iter().chain(beside.map(move |(way, spread)| Row {
                name: name.clone().into(),
                unit: self.unit,
                ours,
                peer: PeerSide { name: way.clone().into(), spread: *spread },
                ratio: ours.median / spread.median,
                target: Target::Any,
            }))
        })
    }
}

/// Gives each point a further way: what a paper's ratio makes of its others.
pub(super) fn add_said(points: &mut [Point], mut said: impl FnMut(&Point) -> f64) {
    for point in points {
        let said = said(point);
        point.ways.push(Spread::of(vec![said]));
    }
}

/// The time of each of `calls` calls, in µs. The calls start at random moments.
pub(super) fn each_us(calls: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<Vec<f64>> {
    let mut pauses = Pauses::new(1);
    let timed = |i| {
        pauses.pause();
        let start = Instant::now();
        call(i)?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3)
    };
    (0..calls).map(timed).collect()
}

/// The median time of `calls` calls, in µs.
pub(super) fn median_us(calls: usize, call: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    each_us(calls, call).map(|calls| median(&calls))
}

/// The median.
pub(super) fn median(calls: &[f64]) -> f64 {
    Spread::of(calls.to_vec()).median
}

/// The mean.
pub(super) fn mean(calls: &[f64]) -> f64 {
    calls.iter().sum::<f64>() / calls.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_all_runs_are_evaluated_together() {
        let mut calls = (0..2).map(|run| (0..=500).map(|i| f64::from(2 * i + run)).collect());
        let mut ways: [Calls<'_>; 1] = [Box::new(move || Ok(calls.next().unwrap()))];
        let point = Point::of_calls("8".into(), 2, &mut ways, median).unwrap();
        // The values are 0 to 1,001.
        assert_eq!(point.ways, [Spread { min: 10.0, median: 500.5, max: 991.0 }]);
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
    }

    #[test]
    fn each_point_is_a_row_for_each_baseline() {
        let mut ways: Vec<Run<'_>> = vec![Box::new(|| Ok(1.0)), Box::new(|| Ok(4.0))];
        let points = vec![Point::measure("8".into(), 2, &mut ways).unwrap()];
        let mut figure = Figure {
            id: "fig7",
            origin: "StRoM’s Figure 7",
            title: "",
            about: "",
            x: "",
            y: "",
            unit: "µs",
            style: Style::Lines,
            ways: vec!["kernel".into(), "READs".into()],
            points,
            paper: "",
            here: String::new(),
        };
        let rows: Vec<Row> = figure.rows().collect();
        assert_eq!((rows.len(), rows[0].ratio, &*rows[0].peer.name), (1, 0.25, "READs"));
        // Without a baseline, a point is a row all the same.
        figure.ways.truncate(1);
        figure.points[0].ways.truncate(1);
        let rows: Vec<Row> = figure.rows().collect();
        assert_eq!((rows.len(), &*rows[0].name, rows[0].ours.median), (1, "fig7: 8", 1.0));
        assert!(rows[0].ratio.is_nan() && rows[0].peer.spread.median.is_nan());
    }
}
