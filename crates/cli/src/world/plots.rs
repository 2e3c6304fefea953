//! Lines over time or size, as SVG that a page can hold. (`page` says what is drawn.)

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::bench::plot::{self, COLOURS, key, short};

/// A line of a plot: its name, and its points.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// A plot of lines.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) log_x: bool,
    pub(super) log_y: bool,
    /// A mark at each point.
    pub(super) marks: bool,
    pub(super) lines: Vec<Line>,
}

const SIZE: (u32, u32) = (760, 340);

/// An axis, linear or in powers of ten.
#[derive(Clone, Copy)]
struct Axis {
    log: bool,
    low: f64,
    high: f64,
}

impl Axis {
    fn of(log: bool, values: impl Iterator<Item = f64>) -> Axis {
        let values = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (least, most) = values.fold((f64::MAX, 0.0), |(a, b), v| (v.min(a), v.max(b)));
        if log {
            let low = least.min(most.max(1e-9)).max(1e-9).log10().floor();
            return Axis { log, low, high: most.max(1e-9).log10().ceil().max(low + 1.0) };
        }
        Axis { log, low: 0.0, high: if most > 0.0 { most * 1.05 } else { 1.0 } }
    }

    fn place(&self, value: f64) -> f64 {
        if self.log { value.max(1e-9).log10().max(self.low) } else { value }
    }

    fn label(&self, place: f64) -> String {
        if !self.log {
            return short((place * 100.0).round() / 100.0);
        }
        let value = 10f64.powf(place);
        match value {
            v if v >= 1e9 => format!("{}G", short(v / 1e9)),
            v if v >= 1e6 => format!("{}M", short(v / 1e6)),
            v if v >= 1e3 => format!("{}k", short(v / 1e3)),
            v => short((v * 1000.0).round() / 1000.0),
        }
    }

    /// How many labels: one a power of ten.
    fn labels(&self) -> usize {
        if self.log { (self.high - self.low) as usize + 1 } else { 9 }
    }
}

impl Plot {
    /// The plot, with a key.
    pub(super) fn draw(&self) -> Result<String> {
        let mut svg = String::new();
        self.fill(SVGBackend::with_string(&mut svg, SIZE))
            .map_err(|error| anyhow!("cannot draw {} by {}: {error}", self.y, self.x))?;
        let (width, height) = SIZE;
        let size = format!("<svg width=\"{width}\" height=\"{height}\" ");
        // The page sets the width.
        Ok(svg.replacen(&size, "<svg role=\"img\" ", 1) + &key(self.lines.iter().map(|l| &*l.0)))
    }

    fn fill(&self, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let root = backend.into_drawing_area();
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let x = Axis::of(self.log_x, points().map(|point| point.0));
        let y = Axis::of(self.log_y, points().map(|point| point.1));
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(x.low..x.high, y.low..y.high)?;
        let (along, up) = (|at: &f64| x.label(*at), |at: &f64| y.label(*at));
        let horizontal = plot::Axis { title: self.x, labels: x.labels(), label: &along };
        let vertical = plot::Axis { title: self.y, labels: y.labels(), label: &up };
        plot::draw_axes(&mut chart, horizontal, vertical)?;
        for (i, (_, points)) in self.lines.iter().enumerate().rev() {
            let colour = COLOURS[i % COLOURS.len()];
            let places: Vec<(f64, f64)> =
                points.iter().map(|(a, b)| (x.place(*a), y.place(*b))).collect();
            let style = colour.stroke_width(if self.marks { 2 } else { 1 });
            chart.draw_series(LineSeries::new(places.iter().copied(), style))?;
            if self.marks {
                let marks = places.iter().map(|at| Circle::new(*at, 4, colour.filled()));
                chart.draw_series(marks)?;
            }
        }
        root.present()?;
        Ok(())
    }
}
