//! The text form of chains. Any text is either refused with the place of its mistake, or is a
//! program that the card runs as the interpreter does.

use remora_offload::chain::card::ChainCard;
use remora_offload::chain::model::{End, Model};
use remora_offload::chain::text::parse;

use crate::seeds::Seed;

/// The most elements that a program may run on the interpreter.
const STEPS: usize = 2000;
/// The most polls of the card, enough for that many elements.
const POLLS: usize = 64;
/// The queues that `program` writes; only one of them runs at a time.
const WRITTEN: [&str; 5] = ["main", "while", "loop", "after", "patterns"];

/// Reads the input as a text, and runs its program.
///
/// # Panics
/// If a mistake has no place in the text, if a program breaks the card, or if the card's memory
/// differs from the interpreter's.
pub fn chain_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let source = match parse(&text) {
        Ok(source) => source,
        Err(wrong) => {
            for mistake in wrong.iter().take(3) {
                let (line, column) = mistake.line_column(&text);
                assert!(line >= 1 && column >= 1 && mistake.at.end <= text.len());
                assert!(!mistake.render("text", &text, false).is_empty());
            }
            return;
        }
    };
    let program = &source.program;
    let mut model = Model::new(program, &[]).expect("what was read can be linked");
    let Ok(mut card) = ChainCard::new(program, &[]) else { return };
    let steps = model.run_in_turn(STEPS);
    let rests = card.run(POLLS);
    let done = steps.len() < STEPS && steps.iter().all(|step| step.end == End::Done);
    // Queues that run side by side may run in another order on the card, so they are not compared.
    let one_by_one = program.queues().iter().all(|queue| WRITTEN.contains(&queue.name.as_str()));
    if done && rests && one_by_one {
        let bytes = program.data_len();
        let [at, on_card] = [model.layout().data.addr, card.layout().data.addr];
        // Addresses are equal on both; keys and queue pair numbers are not part of the data.
        assert_eq!(model.bytes(at, bytes), card.bytes(on_card, bytes));
    }
}

/// The examples, and texts that use the other parts of the language.
pub fn texts() -> Vec<Seed> {
    let seed = |name: &str, text: &str| Seed { name: name.into(), data: text.into() };
    vec![
        seed("if", include_str!("../../examples/chains/if.chain")),
        seed("search", include_str!("../../examples/chains/search.chain")),
        seed("hash_get", include_str!("../../examples/chains/hash_get.chain")),
        seed("mov", include_str!("../../examples/chains/mov.chain")),
        seed("compare", include_str!("../../examples/chains/compare.chain")),
        seed("endless", include_str!("../../examples/chains/endless.chain")),
        seed(
            "repeat",
            "data x = 0\nprogram {\n repeat 3 {\n add x, 1\n if x == 2 { break }\n }\n}\n",
        ),
        seed("orders", "queue q {\n a: max a.operand, 1 -> a.compare\n wait q 1 silent\n}\n"),
        seed("too-many", "program {\n repeat 9999 { repeat 9999 { } }\n}\n"),
    ]
}
