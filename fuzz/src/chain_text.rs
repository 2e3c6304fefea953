//! The text form of chains: any text is refused with its place, or makes a program, which the card
//! runs as the interpreter does.

use remora_offload::chain::card::ChainCard;
use remora_offload::chain::model::{End, Model};
use remora_offload::chain::text::parse;

use crate::seeds::Seed;

/// Elements that a program may run.
const STEPS: usize = 2000;
/// Polls of the card for as many.
const POLLS: usize = 64;
/// Queues that one `program` is made of, of which one runs at a time.
const WRITTEN: [&str; 5] = ["main", "while", "loop", "after", "patterns"];

/// Reads the input as a text and runs what it means.
///
/// # Panics
/// A mistake has no place in the text, a program breaks the card, or the card does otherwise than
/// the interpreter.
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
    // Queues that run side by side may do so in another order.
    let one_by_one = program.queues().iter().all(|queue| WRITTEN.contains(&queue.name.as_str()));
    if done && rests && one_by_one {
        let bytes = program.data_len();
        let [at, on_card] = [model.layout().data.addr, card.layout().data.addr];
        // Addresses are the same on both, keys and numbers of queues are no data.
        assert_eq!(model.bytes(at, bytes), card.bytes(on_card, bytes));
    }
}

/// The examples, and what else the language has.
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
