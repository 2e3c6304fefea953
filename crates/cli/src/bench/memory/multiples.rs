//! Simulated figures on the page: small plots with one scale, beside each other, in which what the
//! paper states is marked.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
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
/// The width of a mark beside others, in powers of two of the size.
const MARK: f64 = 0.36;
const FONT: &str = "sans-serif";

/// The page's sections about the simulation.
pub(super) fn sections(simulated: &Simulated) -> Result<String> {
    let mut page = String::new();
    if !simulated.figures.is_empty() {
        write!(
            page,
            "<section><h2>The paper’s figures, simulated</h2><p class=\"about\">Lines are the \
             simulator’s: descriptors, tags, packets and interrupts that pass links, buses and \
             memories with a rate, a window and a latency. Marks behind them are what the \
             paper’s text states of a line’s peak or its end; its plots show more, which only \
             eyes can read. The dashed line is what the link leaves for data. Each parameter has a \
             stated source (<code>--parameters</code>); three rest on figures of the paper.</p>\
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
    /// Room behind it, for marks.
    behind: f64,
    labels: &'a dyn Fn(f64) -> String,
    label_count: usize,
}

fn draw(drawn: &Drawn, compared: &[Compared]) -> Result<String> {
    let place = |size: u64| (size as f64).log2();
    let lines = drawn.lines.iter().map(|line| {
        drawn.sizes.iter().zip(line).map(|(size, value)| (place(*size), *value)).collect()
    });
    let (first, last) = (drawn.sizes[0], drawn.sizes[drawn.sizes.len() - 1]);
    // All that the text states is about the largest sizes, or about peaks, which are there. The
    // marks stand behind the lines, side by side.
    let marks = compared.iter().enumerate().map(|(i, Compared { stated, .. })| Mark {
        x: place(last) + 0.7 + MARK * i as f64,
        range: (stated.low, stated.high),
        line: stated.line,
    });
    svg(&Plot {
        lines: lines.collect(),
        marks: marks.collect(),
        limit: limit(drawn),
        x: "size of a transfer",
        ends: (place(first), place(last)),
        behind: if compared.is_empty() { 0.0 } else { 0.9 + MARK * compared.len() as f64 },
        labels: &|at| output::bytes(1 << (at.round() as u32).min(62)),
        label_count: 12,
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
    let right = last + margin + plot.behind;
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .margin_right(22)
        .x_label_area_size(44)
        .y_label_area_size(48)
        .build_cartesian_2d(first - margin..right, 0.0..TOP)?;
    let style = |size: u32| (FONT, size).into_font().color(&INK);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_labels(plot.label_count)
        .x_label_formatter(&|at| {
            if *at > last + margin { String::new() } else { (plot.labels)(*at) }
        })
        .y_labels(9)
        .y_label_formatter(&|at| format!("{at:.0}"))
        .x_desc(plot.x)
        .y_desc("GB/s")
        .label_style(style(12))
        .axis_desc_style(style(13))
        .draw()?;
    if let Some(limit) = plot.limit {
        let ends = [(first - margin, limit), (right, limit)];
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
        let ends = vec![(*x, *low), (*x, *high)];
        chart.draw_series([PathElement::new(ends.clone(), INK.stroke_width(7))])?;
        chart.draw_series(ends.iter().map(|end| Circle::new(*end, 4, INK.filled())))?;
        chart.draw_series([PathElement::new(ends.clone(), colour.stroke_width(4))])?;
        chart.draw_series(ends.iter().map(|end| Circle::new(*end, 3, colour.filled())))?;
    }
    if plot.behind > 0.0 {
        let centred = Pos::new(HPos::Center, VPos::Top);
        let middle = last + 0.5 + plot.behind / 2.0;
        chart.draw_series([Text::new("paper", (middle, TOP), style(12).pos(centred))])?;
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
        behind: 0.0,
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
