//! A figure as a plot in SVG, which a page can hold.

use anyhow::{Result, anyhow};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::figure::{Figure, Style};
use super::row::Spread;

/// Colours that people with colour blindness can also distinguish (Okabe and Ito), Remora's first;
/// where there are more than eight, the last two help.
pub(crate) const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 140, 105),
    RGBColor(150, 110, 160),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 96, 104),
    RGBColor(204, 121, 167),
    RGBColor(120, 78, 30),
    RGBColor(20, 20, 20),
];
/// The colour of words and axes.
pub(crate) const INK: RGBColor = RGBColor(70, 76, 84);
/// The colour of a grid.
pub(crate) const GRID: RGBColor = RGBColor(228, 231, 235);
const SIZE: (u32, u32) = (760, 400);
const FONT: &str = "sans-serif";

/// The highest place that whiskers may reach, as a multiple of the highest median.
const HEADROOM: f64 = 2.5;

/// Draws medians, joined by lines, and the lowest and highest values as whiskers, which end at the
/// edge of the plot at the latest.
pub(super) fn draw(figure: &Figure) -> Result<String> {
    let mut svg = String::new();
    fill(figure, SVGBackend::with_string(&mut svg, SIZE))
        .map_err(|error| anyhow!("cannot draw {}: {error}", figure.id))?;
    // The page sets the width.
    Ok(svg.replacen("<svg width=\"760\" height=\"400\" ", "<svg role=\"img\" ", 1))
}

fn fill(figure: &Figure, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let root = backend.into_drawing_area();
    let count = figure.points.len();
    let scale = Scale::of(figure);
    let right = count as f64 - 0.5;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(52)
        .y_label_area_size(68)
        .build_cartesian_2d(-0.5..right, scale.bottom..scale.top)?;
    let label = |at: &f64| {
        let i = at.round();
        let here = (at - i).abs() < 1e-6 && i >= 0.0;
        figure.points.get(i as usize).filter(|_| here).map_or(String::new(), |p| p.x.clone())
    };
    let title = format!("{}, {}", figure.y, figure.unit);
    let labels = if scale.log { (scale.top - scale.bottom) as usize + 1 } else { 10 };
    let value = |at: &f64| short(scale.value(*at));
    let x = Axis { title: figure.x, labels: 2 * count + 1, label: &label };
    draw_axes(&mut chart, x, Axis { title: &title, labels, label: &value })?;
    // Remora's line comes last, on top of the others.
    for way in (0..figure.ways.len()).rev() {
        draw_way(&mut chart, figure, &scale, way)?;
    }
    root.present()?;
    Ok(())
}

/// The area of a plot that shows values.
pub(crate) type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// An axis of a plot.
#[derive(Clone, Copy)]
pub(crate) struct Axis<'a> {
    /// What it shows.
    pub(crate) title: &'a str,
    /// How many labels it has, about.
    pub(crate) labels: usize,
    /// The label of a place.
    pub(crate) label: &'a dyn Fn(&f64) -> String,
}

/// Draws the axes, and a grid behind the values.
pub(crate) fn draw_axes(
    chart: &mut Chart<'_, '_>,
    x: Axis<'_>,
    y: Axis<'_>,
) -> Result<(), Box<dyn std::error::Error>> {
    let text = |size: u32| (FONT, size).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_labels(x.labels)
        .x_label_formatter(x.label)
        .y_labels(y.labels)
        .y_label_formatter(y.label)
        .x_desc(x.title)
        .y_desc(y.title)
        .label_style(text(14))
        .axis_desc_style(text(15))
        .draw()?;
    Ok(())
}

/// The names of lines with their colours, in HTML.
pub(crate) fn key<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let entry = |(name, colour): (&str, &RGBColor)| {
        let RGBColor(r, g, b) = colour;
        format!("<span><i style=\"background:rgb({r},{g},{b})\"></i>{}</span>", escaped(name))
    };
    let entries: String = names.zip(COLOURS.iter().cycle()).map(entry).collect();
    format!("<div class=\"key\">{entries}</div>")
}

/// A text, for HTML.
pub(crate) fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Draws the medians of one way, and its whiskers.
fn draw_way(
    chart: &mut Chart<'_, '_>,
    figure: &Figure,
    scale: &Scale,
    way: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let ways = figure.ways.len();
    let colour = COLOURS[way % COLOURS.len()];
    // The marks of one place stand side by side.
    let apart = if figure.style == Style::Bars { 0.8 / ways as f64 } else { 0.05 };
    let at = |i: usize| i as f64 + (way as f64 - (ways - 1) as f64 / 2.0) * apart;
    let spreads: Vec<_> = figure
        .points
        .iter()
        .map(|point| point.ways[way])
        .enumerate()
        .filter(|(_, spread)| spread.median.is_finite())
        .collect();
    let median = |(i, s): &(usize, Spread)| (at(*i), scale.place(s.median));
    if figure.style == Style::Bars {
        chart.draw_series(spreads.iter().map(|spread| {
            let (x, y) = median(spread);
            let half = apart * 0.44;
            Rectangle::new([(x - half, scale.bottom), (x + half, y)], colour.filled())
        }))?;
    } else {
        let width = if way == 0 { 3 } else { 2 };
        let line = LineSeries::new(spreads.iter().map(median), colour.stroke_width(width));
        chart.draw_series(line)?;
        let marks = spreads.iter().map(|s| Circle::new(median(s), 4, colour.filled()));
        chart.draw_series(marks)?;
    }
    let whisker = if figure.style == Style::Bars { INK } else { colour };
    chart.draw_series(spreads.iter().map(|(i, s)| {
        let style = whisker.mix(0.55).stroke_width(1);
        let [low, middle, high] =
            [s.min, s.median, s.max].map(|value| scale.place(value).min(scale.top));
        ErrorBar::new_vertical(at(*i), low, middle, high, style, 7)
    }))?;
    Ok(())
}

/// The scale of the y axis.
struct Scale {
    log: bool,
    bottom: f64,
    top: f64,
}

impl Scale {
    fn of(figure: &Figure) -> Scale {
        let spreads = || figure.points.iter().flat_map(|p| &p.ways);
        let most = |of: fn(&Spread) -> f64| spreads().map(of).fold(0.0, f64::max);
        let top = most(|s| s.max);
        if figure.style != Style::Log {
            // Otherwise one slow call would leave no room for all the others.
            let top = top.min(most(|s| s.median) * HEADROOM);
            return Scale { log: false, bottom: 0.0, top: top * 1.06 };
        }
        let least = spreads().map(|s| s.min).fold(top, f64::min).max(1e-9);
        Scale { log: true, bottom: least.log10().floor(), top: top.max(1e-9).log10().ceil() }
    }

    fn place(&self, value: f64) -> f64 {
        if self.log { value.max(1e-9).log10() } else { value }
    }

    fn value(&self, place: f64) -> f64 {
        if self.log { 10f64.powf(place) } else { place }
    }
}

/// A number for an axis, without the digits that rounding errors leave.
pub(crate) fn short(value: f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::Point;

    #[test]
    fn one_slow_call_leaves_room_for_the_others() {
        let spread = |max| Spread { min: 1.0, median: 2.0, max };
        let figure = |style, max| Figure {
            id: "",
            origin: "",
            title: "",
            about: "",
            x: "",
            y: "",
            unit: "",
            style,
            ways: vec![String::new()],
            points: vec![Point { x: String::new(), ways: vec![spread(max)] }],
            paper: "",
            here: String::new(),
        };
        let top = |style, max| Scale::of(&figure(style, max)).top;
        assert!(top(Style::Lines, 4.0) > 4.0 && top(Style::Lines, 4.0) < 5.0);
        assert_eq!(top(Style::Lines, 5000.0), top(Style::Bars, 5.0));
        assert!(top(Style::Log, 5000.0) > 5000f64.log10());
    }
}
