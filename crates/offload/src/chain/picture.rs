//! Pictures of chains in the style of RedN's figures: queues as rows of requests, black arrows for
//! their order, brown arrows from a request to the one that it changes, dashed arrows for WAIT and
//! ENABLE.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::card::Step;
use super::element::{Label, QueueId};
use super::place::Base;
use super::program::{Kind, Program};
use super::verb::{Class, Verb};

const BOX_WIDTH: i32 = 168;
const BOX_HEIGHT: i32 = 66;
const GAP: i32 = 30;
const MARGIN: i32 = 28;
const NAME_WIDTH: i32 = 118;
/// Room above a row for the arrows that end there.
const ROW_GAP: i32 = 78;
/// Requests in a row; further requests go on in the next row.
const COLUMNS: i32 = 7;
const HEADER: i32 = 46;
const FOOTER: i32 = 44;
/// Letters in a line of a box.
const LETTERS: usize = 27;

const STYLE: &str = "\
.page{fill:#fff}\
text{font-family:Helvetica,Arial,sans-serif;font-size:11px;fill:#222}\
.name{font-size:14px;font-weight:bold}.kind{fill:#777}\
.verb{font-size:14px;font-weight:bold;text-anchor:middle}\
.operand{text-anchor:middle;fill:#444;font-size:10px}\
.label{fill:#777;font-size:10px}.times{fill:#777;font-size:10px;text-anchor:end}\
.field{font-size:10px;fill:#8a4b08;paint-order:stroke;stroke:#fff;stroke-width:3px}\
rect.copy{fill:#dcebfa;stroke:#3a6ea5}rect.atomic{fill:#fde8cf;stroke:#b8720a}\
rect.order{fill:#e4f3e1;stroke:#4a8a3f}rect.nothing{fill:#f3f3f3;stroke:#999}\
rect.receive{fill:#efe3f6;stroke:#7d4c9e}\
rect.off{stroke-dasharray:5 3}rect.lane{fill:#fafafa;stroke:#e3e3e3}\
path{fill:none}.next{stroke:#222;stroke-width:1.4}\
.changes{stroke:#a65e0e;stroke-width:1.6}\
.orders{stroke:#4a8a3f;stroke-width:1.4;stroke-dasharray:5 4}";

/// The number of times that each request ran.
#[derive(Clone, Debug, Default)]
pub struct Runs(Vec<u32>);

impl Runs {
    /// Counts the requests of `steps`.
    pub fn of(program: &Program, steps: &[Step]) -> Runs {
        let mut runs = vec![0; program.len()];
        for label in steps.iter().filter_map(|step| program.step_label(step)) {
            runs[label.0] += 1;
        }
        Runs(runs)
    }
}

struct Canvas<'p> {
    program: &'p Program,
    runs: Option<&'p Runs>,
    out: String,
    /// By queue: its first row.
    rows: Vec<i32>,
    height: i32,
    width: i32,
    /// By request: the arrows that end there so far.
    arrivals: Vec<usize>,
}

/// The requests of a queue that are drawn: only the first of the NOOPs that fill up a ring.
fn shown(program: &Program, queue: usize) -> &[Label] {
    let labels = program.queues()[queue].labels();
    let fills = |label: &Label| {
        let request = program.request(*label);
        request.verb == Verb::Noop && program.name(*label).is_empty()
    };
    let len = labels.iter().rposition(|label| !fills(label)).map_or(0, |last| last + 2);
    let is_receive = program.queues()[queue].kind == Kind::Receive;
    if is_receive { labels } else { &labels[..len.min(labels.len())] }
}

/// Where arrows end on a box: offsets from its middle, used in turn. The changed field's name is
/// beside the arrow's end.
const ARRIVALS: [i32; 4] = [4, 50, -34, 76];

/// A program's picture as SVG text. With `runs`, each request says how often it ran.
pub fn svg(program: &Program, title: &str, runs: Option<&Runs>) -> String {
    let mut rows = vec![0; program.queues().len()];
    let (mut row, mut widest) = (0, 1);
    // The queue of requests that are only copied comes last.
    let patterns = |queue: &usize| Some(QueueId(*queue)) == program.patterns_queue();
    let queues = (0..rows.len()).filter(|queue| !patterns(queue));
    for queue in queues.chain((0..rows.len()).filter(patterns)) {
        rows[queue] = row;
        let len = shown(program, queue).len() as i32;
        row += (len + COLUMNS - 1) / COLUMNS;
        widest = widest.max(len.min(COLUMNS));
    }
    let width = 2 * MARGIN + NAME_WIDTH + widest * (BOX_WIDTH + GAP);
    let height = HEADER + row * (BOX_HEIGHT + ROW_GAP) + FOOTER + MARGIN;
    let (out, arrivals) = (String::new(), vec![0; program.len()]);
    let mut canvas = Canvas { program, runs, out, rows, height, width, arrivals };
    canvas.draw(title);
    canvas.out
}

impl Canvas<'_> {
    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.out.write_fmt(line);
        self.out.push('\n');
    }

    fn draw(&mut self, title: &str) {
        let (width, height) = (self.width, self.height);
        self.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\"><style>{STYLE}</style><defs>"
        ));
        for (id, colour) in [("n", "#222"), ("c", "#a65e0e"), ("o", "#4a8a3f")] {
            self.put(format_args!(
                "<marker id=\"{id}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
                 markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" \
                 style=\"fill:{colour}\"/></marker>"
            ));
        }
        self.put(format_args!("</defs><rect class=\"page\" width=\"100%\" height=\"100%\"/>"));
        let title = escape(title);
        self.put(format_args!("<text class=\"name\" x=\"{MARGIN}\" y=\"30\">{title}</text>"));
        for queue in 0..self.program.queues().len() {
            self.lane(queue);
        }
        for queue in 0..self.program.queues().len() {
            self.requests(QueueId(queue));
        }
        for queue in self.program.queues() {
            for &label in queue.labels() {
                self.arrows(label);
            }
        }
        self.legend();
        self.put(format_args!("</svg>"));
    }

    fn row_top(row: i32) -> i32 {
        HEADER + row * (BOX_HEIGHT + ROW_GAP) + ROW_GAP / 2
    }

    /// The upper left corner of a request's box, if the request is drawn.
    fn corner(&self, label: Label) -> Option<(i32, i32)> {
        let (queue, index) = self.program.position(label)?;
        let index = (index as usize).min(shown(self.program, queue.0).len().checked_sub(1)?);
        let (row, column) = (index as i32 / COLUMNS, index as i32 % COLUMNS);
        let x = MARGIN + NAME_WIDTH + column * (BOX_WIDTH + GAP);
        Some((x, Self::row_top(self.rows[queue.0] + row)))
    }

    fn lane(&mut self, i: usize) {
        let queue = &self.program.queues()[i];
        let len = shown(self.program, i).len() as i32;
        if len == 0 {
            return;
        }
        let rows = (len + COLUMNS - 1) / COLUMNS;
        let top = Self::row_top(self.rows[i]) - 20;
        let height = rows * (BOX_HEIGHT + ROW_GAP) - ROW_GAP + 40;
        let width = self.width - 2 * MARGIN + 16;
        let kind = match (queue.kind, queue.managed) {
            (Kind::Receive, _) => "from the client",
            (Kind::Reply, _) => "to the client",
            (Kind::Loop, true) => "managed",
            (Kind::Loop, false) => "plain",
        };
        let (name, x) = (escape(&queue.name), MARGIN);
        self.put(format_args!(
            "<rect class=\"lane\" x=\"{}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" \
             rx=\"8\"/>\
             <text class=\"name\" x=\"{x}\" y=\"{}\">{name}</text>\
             <text class=\"kind\" x=\"{x}\" y=\"{}\">{kind}</text>",
            x - 10,
            top + 46,
            top + 63
        ));
    }

    fn requests(&mut self, queue: QueueId) {
        let labels = shown(self.program, queue.0);
        let all = self.program.queues()[queue.0].labels().len();
        let mut before: Option<(i32, i32)> = None;
        for &label in labels {
            let Some((x, y)) = self.corner(label) else { continue };
            match before {
                Some((left, top)) if top == y => {
                    let (from, middle) = (left + BOX_WIDTH, y + BOX_HEIGHT / 2);
                    self.path("next", "n", &format!("M{from} {middle}H{}", x - 2));
                }
                Some((left, top)) => {
                    // An arrow to the next row, round the corner.
                    let (right, low) = (left + BOX_WIDTH, top + BOX_HEIGHT / 2);
                    let between = top + BOX_HEIGHT + ROW_GAP / 2;
                    let path = format!(
                        "M{right} {low}h12V{between}H{}V{}H{}",
                        x - 14,
                        y + BOX_HEIGHT / 2,
                        x - 2
                    );
                    self.path("next", "n", &path);
                }
                None => {}
            }
            before = Some((x, y));
            self.request(label, queue, (x, y));
        }
        if let (Some((x, y)), true) = (before, all > labels.len()) {
            self.put(format_args!(
                "<text class=\"operand\" x=\"{}\" y=\"{}\">and {} more, to fill the ring</text>",
                x + BOX_WIDTH / 2,
                y + 46,
                all - labels.len()
            ));
        }
    }

    fn request(&mut self, label: Label, queue: QueueId, (x, y): (i32, i32)) {
        let request = self.program.request(label);
        let receives = self.program.queues()[queue.0].kind == Kind::Receive;
        let class = match request.verb.class() {
            _ if receives => "receive",
            Class::Copy => "copy",
            Class::Atomic => "atomic",
            Class::Order => "order",
            Class::Nothing => "nothing",
        };
        let off = if request.off { " off" } else { "" };
        let verb = request.verb.name().to_uppercase();
        let verb = match (receives, request.off) {
            (true, _) => "RECV".to_owned(),
            (_, true) => format!("NOOP ⇢ {verb}"),
            _ => verb,
        };
        let middle = x + BOX_WIDTH / 2;
        self.put(format_args!(
            "<rect class=\"{class}{off}\" x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" \
             height=\"{BOX_HEIGHT}\" rx=\"5\"/>\
             <text class=\"verb\" x=\"{middle}\" y=\"{}\">{}</text>",
            y + 30,
            escape(&verb)
        ));
        let (name, operands) = (self.program.name(label), self.program.operands(label));
        self.put(format_args!(
            "<text class=\"label\" x=\"{}\" y=\"{}\">{}</text>",
            x + 6,
            y + 13,
            escape(name)
        ));
        for (i, line) in wrap(&operands).iter().enumerate() {
            self.put(format_args!(
                "<text class=\"operand\" x=\"{middle}\" y=\"{}\">{}</text>",
                y + 46 + 12 * i as i32,
                escape(line)
            ));
        }
        if let Some(times) = self.runs.map(|runs| runs.0[label.0]) {
            self.put(format_args!(
                "<text class=\"times\" x=\"{}\" y=\"{}\">× {times}</text>",
                x + BOX_WIDTH - 6,
                y + 13
            ));
        }
    }

    fn arrows(&mut self, label: Label) {
        let request = self.program.request(label).clone();
        // Arrows show only what a request writes: remote memory, or for a READ and a receive its
        // local pieces.
        let reads = matches!(request.verb, Verb::Read | Verb::Noop);
        let written = request.local.iter().map(|span| span.at).filter(|_| reads);
        let written = written.chain(request.remote.filter(|_| request.verb != Verb::Read));
        let mut drawn = BTreeSet::new();
        for place in written {
            let Base::Request(to) = place.base else { continue };
            let name = self.program.place_name(place);
            let field = name.rsplit('.').next().unwrap_or_default().to_owned();
            if to != label && drawn.insert((to, field.clone())) {
                self.link(label, to, "changes", "c", &field, drawn.len() as i32);
            }
        }
        let Some((queue, count)) = request.order else { return };
        let target = match count {
            super::request::Count::Through(to) => Some(to),
            _ => self.program.queues()[queue.0].labels().first().copied(),
        };
        let own = self.program.position(label).map(|(own, _)| own) == Some(queue);
        if let Some(to) = target.filter(|to| *to != label && !own) {
            if request.verb == Verb::Wait {
                self.link(to, label, "orders", "o", "", 0);
            } else {
                self.link(label, to, "orders", "o", "", 0);
            }
        }
    }

    /// Draws an arrow from box to box: from edge to edge across rows, as an arc within a row.
    fn link(&mut self, from: Label, to: Label, class: &str, marker: &str, text: &str, nth: i32) {
        let (Some((ax, ay)), Some((bx, by))) = (self.corner(from), self.corner(to)) else { return };
        // Arrows of one box begin and end at different points.
        let spread = (nth % 5 - 2) * 13;
        let shift = if class == "orders" {
            -62
        } else {
            self.arrivals[to.0] += 1;
            ARRIVALS[(self.arrivals[to.0] - 1) % ARRIVALS.len()]
        };
        let (x, u) = (ax + BOX_WIDTH / 2 + spread, bx + BOX_WIDTH / 2 + shift);
        let (path, label) = if ay == by {
            let lift = 16 + ((u - x).abs() / (BOX_WIDTH + GAP)).min(3) * 8;
            let top = ay - lift;
            (format!("M{x} {ay}C{x} {top} {u} {top} {u} {}", by - 2), (u, by - 7))
        } else if ay < by {
            let (low, bend) = (ay + BOX_HEIGHT, ROW_GAP / 2 + 8);
            let path = format!("M{x} {low}C{x} {} {u} {} {u} {}", low + bend, by - bend, by - 2);
            (path, (u, by - 7))
        } else {
            let (low, bend) = (by + BOX_HEIGHT, ROW_GAP / 2 + 8);
            let path = format!("M{x} {ay}C{x} {} {u} {} {u} {}", ay - bend, low + bend, low + 2);
            (path, (u, low + 14))
        };
        self.path(class, marker, &path);
        if !text.is_empty() {
            let (x, y) = label;
            let text = escape(text);
            self.put(format_args!("<text class=\"field\" x=\"{}\" y=\"{y}\">{text}</text>", x + 8));
        }
    }

    fn path(&mut self, class: &str, marker: &str, path: &str) {
        self.put(format_args!(
            "<path class=\"{class}\" marker-end=\"url(#{marker})\" d=\"{path}\"/>"
        ));
    }

    fn legend(&mut self) {
        let y = self.height - MARGIN;
        let (mut x, middle) = (MARGIN, y - 4);
        let arrows = [
            ("next", "n", "order in a queue"),
            ("changes", "c", "changes a field"),
            ("orders", "o", "WAIT, ENABLE"),
        ];
        for (class, marker, text) in arrows {
            self.path(class, marker, &format!("M{x} {middle}h34"));
            self.put(format_args!("<text x=\"{}\" y=\"{y}\">{text}</text>", x + 42));
            x += 150;
        }
        self.put(format_args!(
            "<rect class=\"copy off\" x=\"{x}\" y=\"{}\" width=\"26\" height=\"14\" rx=\"3\"/>\
             <text x=\"{}\" y=\"{y}\">off until its op-code changes</text>",
            y - 11,
            x + 34
        ));
    }
}

/// Breaks a text at blanks into at most two lines.
fn wrap(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < LETTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    if lines.len() > 2 {
        lines.truncate(2);
        lines[1].push_str(" …");
    }
    let cut = |line: String| {
        if line.chars().count() <= LETTERS + 2 {
            return line;
        }
        line.chars().take(LETTERS + 1).chain(['…']).collect()
    };
    lines.into_iter().map(cut).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
