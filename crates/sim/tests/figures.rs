//! The paper's figures as simulated: exact, since nothing in them is left to chance.

use std::fmt::Write;

use remora_sim::figure::predictions::{ADDED_NS, added, alternatives, amortisation};
use remora_sim::figure::stated::STATED;
use remora_sim::figure::{FIGURES, Simulator};
use remora_sim::hardware::xdma::Direction;

#[test]
fn the_figures_are_as_recorded() {
    let mut text = String::new();
    let mut simulator = Simulator::default();
    for figure in &FIGURES {
        let drawn = simulator.draw(figure, true);
        writeln!(text, "Figure {}: {}", figure.number, figure.title).unwrap();
        for ((name, _), line) in figure.ways.iter().zip(&drawn.lines) {
            let values: Vec<String> = line.iter().map(|value| format!("{value:.3}")).collect();
            writeln!(text, "  {name}: {}", values.join(" ")).unwrap();
        }
        for stated in STATED {
            if let Some((_, value)) = stated.simulated(&drawn) {
                let (way, at, difference) = (stated.way(), stated.at, stated.difference(value));
                writeln!(text, "  {way}, {at}: {value:.2}, stated {stated}: {difference:+.0} %")
                    .unwrap();
            }
        }
    }
    // Expect: exactly the recorded figures. A change of the model is a change of this text.
    insta::assert_snapshot!(text);
}

#[test]
fn the_predictions_come_out_as_recorded() {
    let mut text = String::new();
    for direction in [Direction::H2C, Direction::C2H] {
        writeln!(text, "{:.3?}", amortisation(direction)).unwrap();
    }
    for row in ADDED_NS.map(added) {
        writeln!(text, "added {} ns: {:.3?}", row.ns, row.bandwidth).unwrap();
    }
    for row in alternatives() {
        writeln!(text, "{}: {:.3?}, {:.3?}", row.name, row.alone, row.microblaze).unwrap();
    }
    // Expect: exactly the recorded figures.
    insta::assert_snapshot!(text);
}
