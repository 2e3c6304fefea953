//! The page: rows, plots and the papers' results, in one file that needs no other.

use std::fmt::Write;

use anyhow::Result;
use remora::offload::cpu::{self, Level};

use super::figure::Figure;
use super::plot;
pub(crate) use super::plot::escaped as text;
use super::row::{Row, Spread};

pub(crate) const STYLE: &str = "\
:root{color-scheme:light}\
body{margin:0;background:#f6f7f9;color:#22272e;font:16px/1.55 system-ui,sans-serif}\
main{max-width:1120px;margin:0 auto;padding:40px 20px 80px}\
h1{font-size:30px;margin:0 0 8px}h2{font-size:21px;margin:0 0 6px}\
h2 small{font-weight:400;color:#6a737d;font-size:15px}\
section{background:#fff;border:1px solid #e3e6ea;border-radius:10px;\
padding:22px 26px;margin:22px 0}\
p{margin:6px 0 12px}.about,footer{color:#57606a}\
svg{width:100%;height:auto;display:block}\
.key{display:flex;flex-wrap:wrap;gap:6px 22px;margin:10px 0 0 68px;font-size:14px}\
.key i{display:inline-block;width:12px;height:12px;border-radius:6px;margin-right:7px}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:10px 0 0}\
dt{color:#6a737d}dd{margin:0}\
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}\
th{text-align:right;font-weight:600;color:#57606a}\
td,th{padding:5px 7px;border-bottom:1px solid #eceff2;text-align:right;white-space:nowrap}\
td small{color:#6a737d}\
.words{text-align:left}\
.met{color:#1a7f37}.missed{color:#b35900}\
details{margin-top:12px;overflow-x:auto}summary{cursor:pointer;color:#57606a;font-size:14px}\
.wide{overflow-x:auto}\
.multiples{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:26px 30px}\
.multiples>div{min-width:0}.multiples .key{margin:4px 0 0 50px}\
.multiples p{font-size:14px;margin:10px 0 0}\
h3{font-size:17px;margin:0 0 4px}h3 small{font-weight:400;color:#6a737d}\
@media(max-width:520px){.multiples{grid-template-columns:1fr}}";

/// The texts of a page besides rows and figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// Its heading.
    pub(super) title: &'static str,
    /// What the page shows, and how to read it.
    pub(super) about: &'static str,
    /// The heading of the table of rows.
    pub(super) rows: &'static str,
    /// The device on Remora's side of the comparison.
    pub(super) ours: &'static str,
    /// The command that made it.
    pub(super) command: &'static str,
    /// Names of some rows and figures.
    pub(super) such: &'static str,
}

/// The page's text. `more` are sections behind those of the figures.
pub(super) fn render(words: Words, rows: &[Row], figures: &[Figure], more: &str) -> Result<String> {
    let Words { title, about, command, .. } = words;
    let mut page = String::new();
    write!(
        page,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Remora: {}</title><style>{STYLE}</style></head><body><main>\
         <h1>{}</h1><p class=\"about\">{}</p>",
        text(title),
        text(title),
        text(about)
    )?;
    if !rows.is_empty() {
        table_of_rows(&mut page, words, rows)?;
    }
    for figure in figures {
        section(&mut page, figure)?;
    }
    page.push_str(more);
    writeln!(
        page,
        "<footer>Whiskers that would leave a plot end at its edge. \
         Made by <code>{command}</code> {} · {} · {} · {} cores</footer>\
         </main></body></html>",
        env!("CARGO_PKG_VERSION"),
        text(&processor()),
        text(&levels()),
        std::thread::available_parallelism().map_or(0, usize::from)
    )?;
    Ok(page)
}

fn table_of_rows(page: &mut String, words: Words, rows: &[Row]) -> Result<()> {
    write!(
        page,
        "<section><h2>{}</h2><div class=\"wide\"><table><tr><th class=\"words\">row<th>{}\
         <th class=\"words\">beside<th>peer<th>ratio<th>asked for<th></tr>",
        text(words.rows),
        text(words.ours)
    )?;
    for row in rows {
        let verdict = row.verdict();
        write!(
            page,
            "<tr><td class=\"words\"><code>{}</code><td>{}<td class=\"words\">{}<td>{}\
             <td><b>{}</b><td>{}<td class=\"{verdict}\">{verdict}</tr>",
            text(&row.name),
            cell(&row.ours, row.unit),
            text(&row.peer.name),
            cell(&row.peer.spread, row.unit),
            row.ratio(),
            row.target
        )?;
    }
    write!(page, "</table></div></section>")?;
    Ok(())
}

/// A spread in a table; a dash if it was not measured.
fn cell(s: &Spread, unit: &str) -> String {
    if s.median.is_nan() {
        return "–".to_owned();
    }
    format!("{:.2} <small>({:.2}–{:.2})</small> {unit}", s.median, s.min, s.max)
}

fn section(page: &mut String, figure: &Figure) -> Result<()> {
    write!(
        page,
        "<section id=\"{}\"><h2>{} <small>{}</small></h2><p class=\"about\">{}</p>\
         {}{}<dl><dt>paper<dd>{}<dt>here<dd>{}</dl><details><summary>Numbers</summary><table>\
         <tr><th class=\"words\">{}",
        figure.id,
        text(figure.title),
        figure.origin,
        text(figure.about),
        plot::draw(figure)?,
        plot::key(figure.ways.iter().map(String::as_str)),
        text(figure.paper),
        text(&figure.here),
        text(figure.x)
    )?;
    for way in &figure.ways {
        write!(page, "<th>{}, {}", text(way), figure.unit)?;
    }
    for point in &figure.points {
        write!(page, "<tr><td class=\"words\">{}", text(&point.x))?;
        for s in &point.ways {
            write!(page, "<td>{}", cell(s, ""))?;
        }
    }
    write!(page, "</table></details></section>")?;
    Ok(())
}

/// The level of processor that runs, and the highest, if that is another.
pub(super) fn levels() -> String {
    match (cpu::level(), Level::highest()) {
        (level, highest) if level == highest => format!("processor: {level}"),
        (level, highest) => format!("processor: {level} (this one has {highest})"),
    }
}

/// The name of the machine's processor.
pub(crate) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    model.map_or("unknown processor", |m| m.trim_start_matches([' ', '\t', ':'])).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Point, Style};

    #[test]
    fn a_page_shows_each_figure_and_is_sound_markup() {
        let spread = Spread { min: 1.0, median: 2.0, max: 4.0 };
        let none = Spread::of(vec![f64::NAN]);
        let figure = Figure {
            id: "fig7",
            origin: "StRoM’s Figure 7",
            title: "Lists & more",
            about: "",
            x: "elements",
            y: "latency",
            unit: "µs",
            style: Style::Lines,
            ways: vec!["kernel".into(), "READs".into(), "not possible here".into()],
            points: vec![Point { x: "4 < 8".into(), ways: vec![spread, spread, none] }],
            paper: "",
            here: String::new(),
        };
        let words = Words { title: "T", about: "", rows: "", ours: "", command: "", such: "" };
        let page = render(words, &[], &[figure], "").unwrap();
        assert!(page.contains("Lists &amp; more") && page.contains("4 &lt; 8"), "{page}");
        assert!(page.matches("<circle").count() >= 2, "a mark for each way");
        assert!(!page.contains("NaN"), "{page}");
        assert!(
            !page.contains("http://") || page.contains("www.w3.org"),
            "the page refers to no other file"
        );
        assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
    }
}
