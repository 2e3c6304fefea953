//! A figure as a plot: SVG, which a page can hold.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::figure::Figure;

/// Colours that those who see few can tell apart, too (Okabe and Ito); the kernel's first.
pub(super) const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 140, 105), RGBColor(150, 110, 160)];
const INK: RGBColor = RGBColor(70, 76, 84);
const GRID: RGBColor = RGBColor(228, 231, 235);
const SIZE: (u32, u32) = (760, 400);
const FONT: &str = "sans-serif";

/// Draws medians, joined, with the lowest and highest runs as whiskers.
pub(super) fn draw(figure: &Figure) -> Result<String> {
    let mut svg = String::new();
    fill(figure, SVGBackend::with_string(&mut svg, SIZE))
        .map_err(|error| anyhow!("cannot draw {}: {error}", figure.id))?;
    // The page says how wide it may be.
    Ok(svg.replacen("<svg width=\"760\" height=\"400\" ", "<svg role=\"img\" ", 1))
}

fn fill(figure: &Figure, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let root = backend.into_drawing_area();
    let count = figure.points.len();
    let top = figure.points.iter().flat_map(|p| &p.ways).map(|s| s.max).fold(0.0, f64::max);
    let right = count as f64 - 0.6;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(52)
        .y_label_area_size(68)
        .build_cartesian_2d(-0.4..right, 0.0..top * 1.06)?;
    let label = |at: &f64| {
        let i = at.round();
        let here = (at - i).abs() < 1e-6 && i >= 0.0;
        figure.points.get(i as usize).filter(|_| here).map_or(String::new(), |p| p.x.clone())
    };
    let text = |size: u32| (FONT, size).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_labels(2 * count + 1)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| short(*value))
        .x_desc(figure.x)
        .y_desc(format!("{}, {}", figure.y, figure.unit))
        .label_style(text(14))
        .axis_desc_style(text(15))
        .draw()?;
    // The kernel's line is the last, on top.
    for way in (0..figure.ways.len()).rev() {
        let colour = COLOURS[way % COLOURS.len()];
        // Whiskers of one place stand side by side.
        let shift = (way as f64 - (figure.ways.len() - 1) as f64 / 2.0) * 0.05;
        let at = |i: usize| i as f64 + shift;
        let spreads: Vec<_> =
            figure.points.iter().map(|point| point.ways[way]).enumerate().collect();
        chart.draw_series(LineSeries::new(
            spreads.iter().map(|(i, s)| (at(*i), s.median)),
            colour.stroke_width(if way == 0 { 3 } else { 2 }),
        ))?;
        chart.draw_series(spreads.iter().map(|(i, s)| {
            let style = colour.mix(0.55).stroke_width(1);
            ErrorBar::new_vertical(at(*i), s.min, s.median, s.max, style, 7)
        }))?;
        chart.draw_series(
            spreads.iter().map(|(i, s)| Circle::new((at(*i), s.median), 4, colour.filled())),
        )?;
    }
    root.present()?;
    Ok(())
}

/// A number on an axis, without what rounding leaves behind.
fn short(value: f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
}
