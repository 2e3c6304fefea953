//! Simulated figures on the page: small plots with one scale, beside each other, in which what the
//! paper states is marked.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use remora_sim::figure::{Drawn, Way};
use remora_sim::hardware::alveo::{self, Design, Machine};
use remora_sim::hardware::bluefield;
use remora_sim::hardware::parameter::Parameter;
use remora_sim::hardware::xdma::Direction;

use super::super::page::text;
use super::super::plot::{COLOURS, GRID, INK};
use super::simulated::{Compared, Findings, Simulated};
use crate::output;

const SIZE: (u32, u32) = (520, 300);
/// The top of all y axes, in GB/s.
const TOP: f64 = 16.0;
const FONT: &str = "sans-serif";

/// The page's sections about the simulation.
pub(super) fn sections(simulated: &Simulated) -> Result<String> {
    let mut page = String::new();
    if !simulated.figures.is_empty() {
        write!(
            page,
            "<section><h2>The paper’s figures, simulated</h2><p class=\"about\">Lines are the \
             simulator’s: descriptors, tags, packets and interrupts that pass links, buses and \
             memories with a rate, a window and a latency. Marks are what the paper’s text \
             states, at the place that it speaks of; its plots have more points, which are no \
             text. The dashed line is what the link leaves for data. No parameter is fitted.</p>\
             <div class=\"multiples\">"
        )?;
        for drawn in &simulated.figures {
            figure(&mut page, drawn)?;
        }
        write!(page, "</div></section>")?;
    }
    if let Some(found) = &simulated.findings {
        findings(&mut page, found)?;
        parameters(&mut page)?;
    }
    Ok(page)
}

fn figure(page: &mut String, drawn: &Drawn) -> Result<()> {
    let compared: Vec<Compared> = Simulated::compared(drawn).collect();
    write!(
        page,
        "<div id=\"fig{0}\"><h3>Figure {0} <small>{1}</small></h3>{2}<div class=\"key\">",
        drawn.figure.number,
        text(drawn.figure.title),
        draw(drawn, &compared)?
    )?;
    key(page, drawn.figure.ways.iter().map(|(name, _)| *name))?;
    write!(page, "</div><p class=\"about\">{}</p>", text(drawn.figure.words))?;
    if !compared.is_empty() {
        write!(
            page,
            "<details open><summary>Stated and simulated, GB/s</summary><table><tr>\
             <th class=\"words\">line<th class=\"words\">where<th>paper<th>simulated\
             <th>difference</tr>"
        )?;
        for Compared { stated, value, .. } in &compared {
            write!(
                page,
                "<tr><td class=\"words\">{}<td class=\"words\">{}<td>{stated}<td>{value:.2}\
                 <td>{:+.0} %</tr>",
                text(stated.way()),
                stated.at,
                stated.difference(*value)
            )?;
        }
        write!(page, "</table></details>")?;
    }
    write!(page, "<details><summary>Numbers, GB/s</summary><table><tr><th class=\"words\">size")?;
    for (name, _) in drawn.figure.ways {
        write!(page, "<th>{}", text(name))?;
    }
    for (i, size) in drawn.sizes.iter().enumerate() {
        write!(page, "<tr><td class=\"words\">{}", output::bytes(*size))?;
        for line in &drawn.lines {
            write!(page, "<td>{:.2}", line[i])?;
        }
    }
    write!(page, "</table></details></div>")?;
    Ok(())
}

fn key<'a>(page: &mut String, names: impl Iterator<Item = &'a str>) -> Result<()> {
    for (name, RGBColor(r, g, b)) in names.zip(COLOURS) {
        let name = text(name);
        write!(page, "<span><i style=\"background:rgb({r},{g},{b})\"></i>{name}</span>")?;
    }
    Ok(())
}

/// A line of a plot, by its places on both axes.
type Line = Vec<(f64, f64)>;

/// A mark: a place on the x axis, a range of the y axis, and the line that it is about.
struct Mark {
    x: f64,
    range: (f64, f64),
    line: usize,
}

/// What a plot shows.
struct Plot<'a> {
    lines: Vec<Line>,
    marks: Vec<Mark>,
    /// A dashed line.
    limit: Option<f64>,
    x: &'a str,
    /// The range of the x axis, and its labels.
    ends: (f64, f64),
    labels: &'a dyn Fn(f64) -> String,
    label_count: usize,
}

fn draw(drawn: &Drawn, compared: &[Compared]) -> Result<String> {
    let place = |size: u64| (size as f64).log2();
    let lines = drawn.lines.iter().map(|line| {
        drawn.sizes.iter().zip(line).map(|(size, value)| (place(*size), *value)).collect()
    });
    let marks = compared.iter().map(|Compared { stated, size, .. }| Mark {
        // The marks of one place stand side by side.
        x: place(*size) + 0.14 * (stated.line as f64 - 1.5),
        range: (stated.low, stated.high),
        line: stated.line,
    });
    let (first, last) = (drawn.sizes[0], drawn.sizes[drawn.sizes.len() - 1]);
    svg(&Plot {
        lines: lines.collect(),
        marks: marks.collect(),
        limit: limit(drawn),
        x: "size of a transfer",
        ends: (place(first), place(last)),
        labels: &|at| output::bytes(1 << (at.round() as u32).min(62)),
        label_count: 9,
    })
}

/// What the link leaves for data.
fn limit(drawn: &Drawn) -> Option<f64> {
    let (_, Way::Dma { direction, .. }) = drawn.figure.ways[0] else { return None };
    let link = Machine::new(Design::Ddr).link;
    let wire = match direction {
        Direction::H2C => link.completion(4096),
        Direction::C2H => link.write(4096),
    };
    Some(link.packets().part(4096, wire).gigabytes_per_second())
}

fn svg(plot: &Plot<'_>) -> Result<String> {
    let mut svg = String::new();
    fill(plot, SVGBackend::with_string(&mut svg, SIZE))
        .map_err(|error| anyhow!("cannot draw a plot: {error}"))?;
    // The page sets the width.
    let sized = format!("<svg width=\"{}\" height=\"{}\" ", SIZE.0, SIZE.1);
    Ok(svg.replacen(&sized, "<svg role=\"img\" ", 1))
}

fn fill(plot: &Plot<'_>, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let root = backend.into_drawing_area();
    let (first, last) = plot.ends;
    let margin = (last - first) * 0.03;
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .margin_right(22)
        .x_label_area_size(44)
        .y_label_area_size(48)
        .build_cartesian_2d(first - margin..last + margin, 0.0..TOP)?;
    let style = |size: u32| (FONT, size).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_labels(plot.label_count)
        .x_label_formatter(&|at| (plot.labels)(*at))
        .y_labels(9)
        .y_label_formatter(&|at| format!("{at:.0}"))
        .x_desc(plot.x)
        .y_desc("GB/s")
        .label_style(style(12))
        .axis_desc_style(style(13))
        .draw()?;
    if let Some(limit) = plot.limit {
        let ends = [(first - margin, limit), (last + margin, limit)];
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, INK.mix(0.6).stroke_width(1)))?;
    }
    for (i, line) in plot.lines.iter().enumerate().rev() {
        let colour = COLOURS[i % COLOURS.len()];
        chart.draw_series(LineSeries::new(line.iter().copied(), colour.stroke_width(2)))?;
        let points = line.iter().map(|point| Circle::new(*point, 2, colour.filled()));
        chart.draw_series(points)?;
    }
    for Mark { x, range: (low, high), line } in &plot.marks {
        let colour = COLOURS[line % COLOURS.len()];
        let bar = PathElement::new(vec![(*x, *low), (*x, *high)], INK.stroke_width(5));
        chart.draw_series([bar])?;
        let ends = [*low, *high].map(|y| Circle::new((*x, y), 5, INK.filled()));
        chart.draw_series(ends)?;
        let inside = [*low, *high].map(|y| Circle::new((*x, y), 3, colour.filled()));
        chart.draw_series(inside)?;
    }
    root.present()?;
    Ok(())
}

fn findings(page: &mut String, found: &Findings) -> Result<()> {
    let line = |at: usize| -> Line {
        found.added.iter().map(|row| (row.ns as f64, row.bandwidth[at])).collect()
    };
    let last = found.added.last().map_or(1.0, |row| row.ns as f64);
    // The paper's values: without and with MicroBlaze.
    let stated = [(0, 10.8, 9.5), (2, 12.0, 9.4), (3, 13.5, 13.5)];
    let marks = stated.into_iter().flat_map(|(line, without, with)| {
        [(0.0, without), (226.0, with)].map(|(x, y)| Mark { x, range: (y, y), line })
    });
    let drawn = svg(&Plot {
        lines: (0..4).map(line).collect(),
        marks: marks.collect(),
        limit: None,
        x: "latency that the interconnect adds, ns",
        ends: (0.0, last),
        labels: &|at| format!("{at:.0}"),
        label_count: 8,
    })?;
    write!(
        page,
        "<section id=\"predictions\"><h2>Two predictions, tested</h2><p class=\"about\">The model \
         predicts that BRAM’s bandwidth at 1 MiB is the driver’s work on each call, and that \
         MicroBlaze is one added latency which several channels hide. The plot has transfers of \
         8 MiB; its marks are the paper’s values without MicroBlaze, and with it at the predicted \
         226 ns.</p><div class=\"multiples\"><div>{drawn}<div class=\"key\">"
    )?;
    key(page, ["H2C, 1 channel", "H2C, 4", "C2H, 1 channel", "C2H, 4"].into_iter())?;
    write!(page, "</div></div><div><ul>")?;
    for said in found.conclusions() {
        write!(page, "<li>{}", text(&said))?;
    }
    write!(page, "</ul></div></div></section>")?;
    Ok(())
}

fn parameters(page: &mut String) -> Result<()> {
    write!(
        page,
        "<section id=\"parameters\"><h2>Parameters</h2><p class=\"about\">Each value of the model, \
         and what it rests on.</p><details><summary>All values</summary>"
    )?;
    let mut table = |parameters: &[Parameter]| -> Result<()> {
        write!(
            page,
            "<table><tr><th class=\"words\">parameter<th>value<th class=\"words\">ground\
             <th class=\"words\">source</tr>"
        )?;
        for parameter in parameters {
            write!(
                page,
                "<tr><td class=\"words\">{}<td>{}<td class=\"words\">{}<td class=\"words\">{}</tr>",
                text(parameter.name),
                parameter.shown(),
                parameter.ground,
                text(parameter.source)
            )?;
        }
        write!(page, "</table>")?;
        Ok(())
    };
    table(alveo::PARAMETERS)?;
    table(bluefield::PARAMETERS)?;
    write!(page, "</details></section>")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_marks_what_the_paper_states() {
        let simulated = Simulated::run("fig8", true);
        let page = sections(&simulated).unwrap();
        // Expect: both values of the text, each with its difference, and marks in the plot.
        assert!(page.contains("<td>7.54<td>") && page.contains("<td>7.77<td>"), "{page}");
        assert!(page.matches("<circle").count() > simulated.figures[0].sizes.len());
        assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
        assert_eq!(page.matches("<div").count(), page.matches("</div>").count());
        assert!(!page.contains("id=\"predictions\""), "they were not asked for");
    }
}
