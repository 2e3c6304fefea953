//! The figures of "In-Network Memory Access" (Farooqi, Hemmatpour, Larsen) in the simulator,
//! beside what the paper's text states, and what became of the model's predictions.

use remora_sim::figure::predictions::{ADDED_NS, Added, Alternative, Amortisation};
use remora_sim::figure::predictions::{added, alternatives, amortisation};
use remora_sim::figure::stated::{STATED, Stated};
use remora_sim::figure::{Drawn, FIGURES, Simulator};
use remora_sim::hardware::xdma::Direction;
use remora_sim::hardware::{alveo, bluefield};

use super::super::row::{PeerSide, Row, Spread, Target};
use crate::output;

/// The name of a figure, for `--only`.
fn id(number: u32) -> String {
    format!("fig{number}")
}

/// The simulated half of the bench.
#[derive(Debug)]
pub(super) struct Simulated {
    pub(super) figures: Vec<Drawn>,
    /// The tests of the predictions, if they are wanted.
    pub(super) findings: Option<Findings>,
}

/// What became of the predictions.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) amortisation: [Amortisation; 2],
    pub(super) added: Vec<Added>,
    pub(super) alternatives: Vec<Alternative>,
}

/// A statement of the paper, and the simulated value.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) stated: Stated,
    pub(super) size: u64,
    pub(super) value: f64,
}

impl Simulated {
    /// Runs the figures whose names contain `only`, and with `predictions` the predictions.
    pub(super) fn run(only: &str, quick: bool) -> Simulated {
        let mut simulator = Simulator::default();
        let wanted = FIGURES.iter().filter(|figure| id(figure.number).contains(only));
        let figures = wanted.map(|figure| simulator.draw(figure, quick)).collect();
        let findings = "predictions".contains(only).then(|| Findings {
            amortisation: [Direction::H2C, Direction::C2H].map(amortisation),
            added: ADDED_NS.map(added).into(),
            alternatives: alternatives(),
        });
        Simulated { figures, findings }
    }

    /// What the paper states about a figure, beside the simulated values.
    pub(super) fn compared(drawn: &Drawn) -> impl Iterator<Item = Compared> {
        STATED.iter().filter_map(|stated| {
            let (size, value) = stated.simulated(drawn)?;
            Some(Compared { stated: *stated, size, value })
        })
    }

    /// Prints all of it.
    pub(super) fn show(&self) {
        for drawn in &self.figures {
            show_figure(drawn);
        }
        let compared: Vec<Compared> = self.figures.iter().flat_map(Self::compared).collect();
        if !compared.is_empty() {
            show_compared(&compared);
        }
        if let Some(findings) = &self.findings {
            findings.show();
        }
    }

    /// A row for each statement of the paper.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        let findings = self.findings.iter().flat_map(Findings::rows);
        self.figures
            .iter()
            .flat_map(Self::compared)
            .map(|compared| {
                let Compared { stated, value, .. } = compared;
                let middle = f64::midpoint(stated.low, stated.high);
                Row {
                    name: format!("{}: {}, {}", id(stated.figure), stated.way(), stated.at).into(),
                    unit: "GB/s",
                    ours: Spread { min: value, median: value, max: value },
                    peer: PeerSide {
                        name: "the paper".into(),
                        spread: Spread { min: stated.low, median: middle, max: stated.high },
                    },
                    ratio: value / middle,
                    target: Target::Any,
                }
            })
            .chain(findings)
    }
}

fn show_figure(drawn: &Drawn) {
    println!("\nFigure {}: {}, simulated, GB/s", drawn.figure.number, drawn.figure.title);
    let names = drawn.figure.ways.iter().map(|(name, _)| (*name).to_owned());
    let mut table = output::table(["size".to_owned()].into_iter().chain(names));
    for (i, size) in drawn.sizes.iter().enumerate() {
        let values = drawn.lines.iter().map(|line| format!("{:.2}", line[i]));
        table.add_row([output::bytes(*size)].into_iter().chain(values));
    }
    output::align_right(&mut table, 0..=drawn.lines.len());
    println!("{table}\npaper: {}", drawn.figure.words);
}

fn show_compared(compared: &[Compared]) {
    println!("\nBeside the values that the paper's text states, GB/s");
    let headings = ["figure", "line", "where", "paper", "simulated", "at", "difference"];
    let mut table = output::table(headings);
    for Compared { stated, size, value } in compared {
        table.add_row([
            stated.figure.to_string(),
            stated.way().to_owned(),
            stated.at.to_string(),
            stated.to_string(),
            format!("{value:.2}"),
            output::bytes(*size),
            format!("{:+.0} %", stated.difference(*value)),
        ]);
    }
    output::align_right(&mut table, [3, 4, 5, 6]);
    println!("{table}\nof a range, the difference is from its nearer end; 0 within it");
}

impl Findings {
    /// The bandwidths of each test.
    fn rows(&self) -> impl Iterator<Item = Row> {
        let added = self.added.iter().map(|row| (format!("{} ns more", row.ns), row.bandwidth));
        let alternatives = self.alternatives.iter().flat_map(|row| {
            [("DDR alone", row.alone), ("and MicroBlaze", row.microblaze)]
                .map(|(design, rates)| (format!("{}, {design}", row.name), rates))
        });
        added.chain(alternatives).flat_map(|(test, rates)| {
            LOADS.into_iter().zip(rates).map(move |(load, rate)| {
                let name = format!("predictions: {test}, {load}");
                Row::alone(name, "GB/s", Spread::of(vec![rate]))
            })
        })
    }

    fn show(&self) {
        println!("\nPrediction 1: BRAM's 7.54 GB/s at 1 MiB is the driver's work for a call");
        let headings = ["", "call, µs", "engine, µs", "BRAM, GB/s", "DDR, GB/s", "without driver"];
        let mut table = output::table(headings);
        for test in &self.amortisation {
            let mut row = vec![format!("{:?}", test.direction)];
            row.extend([test.call_us, test.engine_us].map(|us| format!("{us:.1}")));
            row.extend(test.bandwidth.map(|rate| format!("{rate:.2}")));
            row.push(format!("{:.2}", test.without_driver));
            table.add_row(row);
        }
        output::align_right(&mut table, 1..6);
        println!("{table}\n\nPrediction 2: MicroBlaze is one added latency, which channels hide");
        let mut table = output::table(["added, ns"].into_iter().chain(LOADS));
        for row in &self.added {
            table.add_row([row.ns.to_string()].into_iter().chain(row.bandwidth.map(in_short)));
        }
        output::align_right(&mut table, 0..5);
        println!("{table}\nGB/s, transfers of 8 MiB\n\nHypotheses of the model, and others");
        let mut table = output::table(["", "design"].into_iter().chain(LOADS));
        for row in &self.alternatives {
            for (name, design, rates) in
                [(row.name, "DDR alone", row.alone), ("", "and MicroBlaze", row.microblaze)]
            {
                let cells = [name.to_owned(), design.to_owned()];
                table.add_row(cells.into_iter().chain(rates.map(in_short)));
            }
        }
        output::align_right(&mut table, 2..6);
        println!("{table}");
        for line in self.conclusions() {
            println!("- {line}");
        }
    }

    /// What the tests say, in words.
    pub(super) fn conclusions(&self) -> Vec<String> {
        let [h2c, c2h] = &self.amortisation;
        let apart =
            |test: &Amortisation| (test.bandwidth[1] / test.bandwidth[0] - 1.0).abs() * 100.0;
        let mut said = vec![format!(
            "Prediction 1 holds for H2C: a call of 1 MiB takes {:.0} µs, of which the engine works \
             {:.0}; that is {:.2} GB/s, and DDR differs by {:.0} %. Of C2H it explains less: {:.2} \
             GB/s where the paper has 7.77.",
            h2c.call_us,
            h2c.engine_us,
            h2c.bandwidth[0],
            apart(h2c),
            c2h.bandwidth[0]
        )];
        let fall = |line: usize| {
            let (none, tested) = (&self.added[0], self.added.iter().find(|row| row.ns == 226));
            tested.map_or(0.0, |row| (1.0 - row.bandwidth[line] / none.bandwidth[line]) * 100.0)
        };
        let [h2c_one, h2c_four, c2h_one, c2h_four] = [0, 1, 2, 3].map(|at| fall(at).abs());
        said.push(format!(
            "Prediction 2 holds for one H2C channel: 226 ns take {h2c_one:.0} % from it (the \
             paper: 12 %). It fails for the others. From one C2H channel they take \
             {c2h_one:.0} % (the paper: 21 %), which needs about twice the latency; and four H2C \
             channels lose {h2c_four:.0} % all the same, since they share the tags that the \
             latency keeps. Only C2H channels, each with requests of its own, hide it \
             ({c2h_four:.0} %)."
        ));
        said
    }
}

/// The headings of four loads.
const LOADS: [&str; 4] = ["H2C, 1 channel", "H2C, 4", "C2H, 1 channel", "C2H, 4"];

fn in_short(rate: f64) -> String {
    format!("{rate:.2}")
}

/// Prints the parameters of the model, and where each is from.
pub(super) fn show_parameters() {
    let machines =
        [("Alveo U250 and its host", alveo::PARAMETERS), ("BlueField-2", bluefield::PARAMETERS)];
    for (machine, parameters) in machines {
        println!("{machine}");
        let mut table = output::table(["parameter", "value", "ground", "source"]);
        for parameter in parameters {
            table.add_row([
                parameter.name.to_owned(),
                parameter.shown(),
                parameter.ground.to_string(),
                parameter.source.to_owned(),
            ]);
        }
        output::align_right(&mut table, [1]);
        println!("{table}\n");
    }
    println!(
        "paper: \"In-Network Memory Access\" says so; document: a specification, product guide or \
         source code; measured: by others, on another machine; hypothesis: concluded, and tested \
         by the figures; assumed: nothing says so"
    );
}
