//! The language of chains: programs against the model, and the mistakes that are told.

use super::*;
use crate::chain::card::ChainCard;
use crate::chain::model::{End, Model};
use proptest::prelude::*;

/// Runs a text on the card; returns the words it shows.
pub(super) fn shows(text: &str) -> Vec<u64> {
    let source =
        parse(text).unwrap_or_else(|wrong| panic!("{}", wrong[0].render("t", text, false)));
    let mut model = Model::new(&source.program, &[]).unwrap();
    let steps = model.run_in_turn(100_000);
    assert!(steps.iter().all(|step| step.end == End::Done), "{:?}", steps.last());
    let word = |shown: &Shown| model.word(source.program.address(model.layout(), shown.span.at));
    let words: Vec<u64> = source.shown.iter().map(word).collect();
    let mut card = ChainCard::new(&source.program, &[]).unwrap();
    assert!(card.run(100_000));
    let word = |shown: &Shown| card.word(source.program.address(card.layout(), shown.span.at));
    assert_eq!(source.shown.iter().map(word).collect::<Vec<_>>(), words);
    words
}

#[test]
fn figure_4_by_hand_and_by_construct() {
    let by_hand = |x: u64| {
        format!(
            "data one = 1\ndata answer = 2\nshow answer\n\
             queue ctl managed {{\n r1: cas r2.head, noop:5 => write:5\n wait ctl through r1\n\
             enable body through r2\n}}\n\
             queue body managed asleep {{\n r2: off write one -> answer id {x}\n}}\n"
        )
    };
    assert_eq!(shows(&by_hand(5)), [1]);
    assert_eq!(shows(&by_hand(6)), [2]);
    let construct = "data x = 5\ndata answer = 0\nshow answer\nprogram doorbell {\n\
                     if x == 5 { mov answer, 1 } else { mov answer, 2 }\n}\n";
    assert_eq!(shows(construct), [1]);
}

#[test]
fn a_program_searches_an_array() {
    let text = "\
data array = 3, 1, 4, 1, 5, 9, 2, 6
data p = &array   # where we are
data i = 0
data found = 0xff
data v = 0
show found
show i
program {
    while i < 8 {
        mov v, [p]
        if v == 5 { mov found, i }
        add p, 8
        add i, 1
    }
}
";
    assert_eq!(shows(text), [4, 8]);
    let breaks = text.replace("{ mov found, i }", "{\n mov found, i\n break\n }");
    assert_eq!(shows(&breaks), [4, 4]);
    let unrolled = breaks.replace("while i < 8", "repeat 8");
    assert_eq!(shows(&unrolled), [4, 4]);
}

#[test]
fn operands_may_be_wide() {
    let text = |b: &str| {
        format!(
            "data a = \"sixteen bytes ok\"\ndata b = \"{b}\"\ndata r = 0\nshow r\n\
                 program {{\n if a:16 == b:16 {{ add r, 1 }}\n}}\n"
        )
    };
    assert_eq!(shows(&text("sixteen bytes ok")), [1]);
    assert_eq!(shows(&text("sixteen bytes oK")), [0]);
    // A place without a length is as long as its data.
    let plain = |b: &str| text(b).replace("b:16 {", "b {");
    assert_eq!(shows(&plain("sixteen bytes ok")), [1]);
    assert_eq!(shows(&plain("sixteen bytes oK")), [0]);
    for (from, to) in [("b:16 {", "r {"), ("b:16 {", "5 {"), ("== b:16", "< b")] {
        let wrong = text("sixteen bytes ok").replace(from, to);
        assert_eq!(mistake(&wrong).2, "these pieces of memory cannot be compared", "{to}");
    }
}

#[test]
fn a_break_in_no_block_leaves_its_loop() {
    let text = |a_loop: &str| {
        format!("data a = 0\nshow a\nprogram {{\n {a_loop} {{ add a, 1\n break }}\n}}\n")
    };
    for a_loop in ["while a < 3", "repeat 5", "loop"] {
        assert_eq!(shows(&text(a_loop)), [1], "{a_loop}");
    }
}

#[test]
fn a_queue_may_have_the_name_of_a_queue_of_the_compiler() {
    for name in ["patterns", "main", "while", "after", "other"] {
        let queue = format!("queue {name} {{\n write a -> b\n}}\n");
        let program = "program {\n while x < 5 { add x, 1 }\n mov y, x\n}\n";
        let data = "data a = 7\ndata b = 0\ndata x = 0\ndata y = 0\nshow b\nshow x\nshow y\n";
        for items in [[queue.as_str(), program], [program, queue.as_str()]] {
            assert_eq!(shows(&format!("{data}{}", items.concat())), [7, 5, 5], "{name}");
        }
    }
}

#[test]
fn long_places_without_a_length_are_compared_whole() {
    let text = |condition: &str| {
        format!(
            "data a = \"abcdefgh1234\"\ndata b = \"abcdefXXXXXX\"\ndata c = \"abcdefgh1234\"\n\
             data r = 0\nshow r\nprogram {{\n if {condition} {{ mov r, 1 }}\n}}\n"
        )
    };
    assert_eq!(shows(&text("a == b")), [0]);
    assert_eq!(shows(&text("a == c")), [1]);
    // The first 48 bits are compared where the text says so.
    assert_eq!(shows(&text("a:6 == b:6")), [1]);
    assert_eq!(shows(&text("a:6 != b:6")), [0]);
    for condition in ["a != b", "a < b", "a == 5", "5 == a", "a == r", "a:8 < b:8"] {
        let wrong = parse(&text(condition)).map(drop).unwrap_err();
        assert_eq!(wrong[0].message, "these pieces of memory cannot be compared", "{condition}");
        assert!(wrong[0].help.contains("`x:6`"), "{}", wrong[0].help);
    }
}

#[test]
fn an_immediate_is_as_long_as_its_place() {
    let text = |statement: &str| {
        format!(
            "data x = 0x1111111111111111, 0x2222222222222222, 3\nshow x:8\nshow x + 8:8\n\
             show r.id:6\nshow r.opcode\nqueue q managed asleep {{\n\
             r: off write x:8 -> x id 7\n}}\n{statement}\n"
        )
    };
    let (ones, twos) = (0x1111_1111_1111_1111_u64, 0x2222_2222_2222_2222);
    let cases: [(&str, u64, u64); 4] = [
        ("x, 5", 5, twos),
        ("x:4, 0", 0x1111_1111_0000_0000, twos),
        ("x + 6:2, 0xffff", 0xffff_1111_1111_1111, twos),
        ("x:16, 5", 5, 0),
    ];
    for (operands, first, second) in cases {
        let program = text(&format!("program {{\n mov {operands}\n}}"));
        assert_eq!(shows(&program)[..2], [first, second], "{operands}");
        let (to, value) = operands.split_once(", ").unwrap();
        let queue = text(&format!("queue p {{\n write {value} -> {to}\n}}"));
        assert_eq!(shows(&queue)[..2], [first, second], "{operands}");
    }
    let program = text("program {\n mov r.id, 5\n mov r.opcode, 3\n}");
    let source = parse(&program).unwrap();
    let mut card = ChainCard::new(&source.program, &[]).unwrap();
    assert!(card.run(1000));
    let value = |shown: &Shown| {
        let addr = source.program.address(card.layout(), shown.span.at);
        card.bytes(addr, shown.span.len as usize).to_vec()
    };
    let values: Vec<Vec<u8>> = source.shown.iter().map(value).collect();
    assert_eq!(values[2..], [vec![5, 0, 0, 0, 0, 0], vec![3, 0]]);
    assert_eq!(values[0], ones.to_le_bytes());
    for operands in ["x:2, 0x10000", "r.opcode, 0x10000", "x:4, &x", "x:2, write:1"] {
        let wrong = mistake(&text(&format!("program {{\n mov {operands}\n}}"))).2;
        assert!(wrong.starts_with("this value does not fit into "), "{operands}: {wrong}");
    }
    let long = mistake("data x = zero 64\nprogram {\n mov x:25, 1\n}\n").2;
    assert_eq!(long, "an immediate has at most 24 bytes");
}

#[test]
fn a_calc_verb_works_on_a_word() {
    let text = |lines: &str| {
        format!("data x = 1, 2\ndata y = 0x100000002\nshow x\nqueue q {{ r: noop }}\n{lines}\n")
    };
    assert_eq!(shows(&text("program {\n add x:8, 5\n}")), [6]);
    // A shorter operand is a smaller number.
    assert_eq!(shows(&text("program {\n add x, y\n}")), [0x1_0000_0003]);
    assert_eq!(shows(&text("program {\n add x, y:4\n}")), [3]);
    let program = |statement: &str| format!("program {{\n {statement}\n}}");
    let queue = |element: &str| format!("queue p {{\n {element}\n}}");
    for (lines, has) in [
        (program("add x:4, 1"), 4),
        (program("max r.id, 1"), 6),
        (program("add x:16, 1"), 16),
        (program("mov x, [y:4]"), 4),
        (queue("add x:4, 1"), 4),
        (queue("cas x:4, 1 => 2"), 4),
    ] {
        let message = format!("this needs a word of 8 bytes, and the place has {has}");
        assert_eq!(mistake(&text(&lines)).2, message, "{lines}");
    }
    let long = mistake(&text("program {\n add y, x:16\n}")).2;
    assert_eq!(long, "an operand has at most 8 bytes");
}

#[test]
fn a_program_has_a_bounded_number_of_requests() {
    let long = "data x = 0\ndata y = zero 400000\ndata z = zero 400000\n";
    let message = "the program has more than 16384 requests";
    let noops = "\n noop".repeat(16_385);
    let adds = "\n add x, 1".repeat(16_383);
    for text in [
        format!("{long}program doorbell {{\n if y:400000 == z:400000 {{ add x, 1 }}\n}}\n"),
        format!("{long}program {{\n while y == z {{ add x, 1 }}\n}}\n"),
        format!("{long}program {{{adds}\n mov x, [x + x]\n}}\n"),
        format!("{long}queue q {{{noops}\n}}\n"),
    ] {
        let wrong = parse(&text).map(drop).unwrap_err();
        assert_eq!((wrong.len(), wrong[0].message.as_str()), (1, message));
    }
    assert_eq!(shows(&format!("{long}show x\nprogram {{{adds}\n add x, 1\n}}\n")), [16_384]);
}

#[test]
fn a_count_through_a_request_is_that_of_its_queue() {
    let text = |order: &str| {
        format!(
            "queue p {{\n r: noop\n s: noop silent\n w: wait p 1\n}}\n\
             queue q managed {{\n {order}\n}}\n"
        )
    };
    for order in ["wait p through r", "enable p through s", "enable p through w"] {
        assert_eq!(parse(&text(order)).map(drop), Ok(()), "{order}");
    }
    let elsewhere = "`r` stands in `p`, not in `q`";
    let cases = [
        ("wait q through r", (7, 17, elsewhere)),
        ("enable q through r", (7, 19, elsewhere)),
        ("wait p through s", (7, 17, "`s` counts in no WAIT")),
        ("wait p through w", (7, 17, "`w` counts in no WAIT")),
    ];
    for (order, (line, column, message)) in cases {
        assert_eq!(mistake(&text(order)), (line, column, message.to_owned()), "{order}");
    }
}

/// The first mistake: its line, column and message.
fn mistake(text: &str) -> (usize, usize, String) {
    let wrong = parse(text).map(drop).unwrap_err();
    let (line, column) = wrong[0].line_column(text);
    assert!(!wrong[0].help.is_empty());
    let rendered = wrong[0].render("file.chain", text, false);
    assert!(rendered.contains(&format!("file.chain:{line}:{column}")), "{rendered}");
    (line, column, wrong[0].message.clone())
}

#[test]
fn mistakes_point_at_the_line() {
    let cases: [(&str, (usize, usize, &str)); 17] = [
        ("data x 5", (1, 8, "expected `=`, found a number")),
        ("data x = 5\ndata x = 6\n", (2, 6, "`x` is the name of something else already")),
        ("data x = 5 $\n", (1, 12, "this is not part of the language")),
        ("data x = 99999999999999999999", (1, 10, "this is not a number of 64 bits")),
        ("show y", (1, 6, "nothing is called `y`")),
        ("data x = 5\nshow x + 8:1\n", (2, 6, "`x` has only 8 bytes")),
        ("program {\n  jump x\n}\n", (2, 3, "`jump` is not a statement")),
        ("program {\n  break\n}\n", (2, 3, "there is no loop to leave here")),
        ("program {\n", (1, 9, "this block is never closed")),
        (
            "data x = 1\nprogram {\n while x = 2 {\n add x, 1\n }\n}\n",
            (3, 10, "expected a comparison, found `=`"),
        ),
        ("queue q {\n fly\n}\n", (2, 2, "`fly` is not a verb")),
        ("queue q {\n a: noop\n write a -> a.id\n}\n", (3, 8, "`a` is a request: which field?")),
        (
            "queue q {\n a: noop\n b: write a.colour -> a.id\n}\n",
            (3, 13, "an element has no field `colour`"),
        ),
        ("queue q {\n wait p 1\n}\n", (2, 7, "nothing is called `p`")),
        ("queue q {\n recv -> q\n}\n", (2, 10, "a queue is not memory")),
        (
            "data a = 1\nprogram {\n if a == 0x1000000000000 { add a, 1 }\n}\n",
            (3, 10, "a comparison takes 48 bits: a number below 2^48, or a place"),
        ),
        (
            "data a = 1\nprogram {\n loop {\n loop { add a, 1 }\n }\n}\n",
            (4, 2, "this loop is inside another loop or an `if`"),
        ),
    ];
    for (text, (line, column, message)) in cases {
        assert_eq!(mistake(text), (line, column, message.to_owned()), "{text}");
    }
}

/// Recycled loops do not nest, and some loops cannot be left.
#[test]
fn impossible_loops_are_reported_at_their_line() {
    let no_loop = "there is no loop to leave here";
    let nested = "this loop is inside another loop or an `if`";
    let cases: [(&str, &str); 8] = [
        ("if a == 1 {\nbreak\n}", no_loop),
        ("loop {\nrepeat 2 {\nbreak\n}\n}", no_loop),
        ("if a == 1 {\nrepeat 2 {\nbreak\n}\n}", no_loop),
        ("loop { break }\nbreak", no_loop),
        ("repeat 2 { break }\nbreak", no_loop),
        ("while a < 3 {\nwhile a < 2 { add a, 1 }\n}", nested),
        ("repeat 2 {\nif a == 1 {\nloop { break }\n}\n}", nested),
        ("loop {\nrepeat 2 {\nwhile a < 2 { add a, 1 }\n}\n}", nested),
    ];
    for (body, message) in cases {
        let text = format!("data a = 1\nprogram {{\n{body}\n}}\n");
        let culprit = if message == no_loop { "break" } else { "while a < 2|loop { break }" };
        let is_it = |line: &str| culprit.split('|').any(|start| line.starts_with(start));
        let line = text.lines().position(is_it).unwrap() + 1;
        assert_eq!(mistake(&text), (line, 1, message.to_owned()), "{text}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = "data a = 1\nprogram {\n if a = 1 {\n add b, 1\n }\n add c, 1\n jump\n}\nshow d\n";
    let wrong = parse(text).map(drop).unwrap_err();
    let lines: Vec<usize> = wrong.iter().map(|wrong| wrong.line_column(text).0).collect();
    assert_eq!(lines, [3, 6, 7, 9]);
    let misspelt = "data answer = 1\nshow anwser\n";
    assert_eq!(parse(misspelt).map(drop).unwrap_err()[0].help, "is it `answer`?");
}

/// Nested statements with loops and breaks.
fn statements() -> impl Strategy<Value = String> {
    let simple = prop_oneof![Just("break\n".to_owned()), Just("add a, 1\n".to_owned())];
    simple.prop_recursive(4, 24, 3, |inner| {
        let block = prop::collection::vec(inner, 0..3).prop_map(|all| all.concat());
        (0..4usize, block.clone(), block).prop_map(|(kind, one, other)| match kind {
            0 => format!("loop {{\n{one}}}\n{other}"),
            1 => format!("while a < 3 {{\n{one}}}\n{other}"),
            2 => format!("repeat 2 {{\n{one}}}\n{other}"),
            _ => format!("if a == 1 {{\n{one}}} else {{\n{other}}}\n"),
        })
    })
}

proptest! {
    /// Each mistake is that of a loop or a `break`, and points at it.
    #[test]
    fn any_nest_of_loops_is_written_or_refused(body in statements()) {
        let text = format!("data a = 1\nprogram {{\n{body}}}\n");
        for wrong in parse(&text).map(drop).err().into_iter().flatten() {
            let line = text.lines().nth(wrong.line_column(&text).0 - 1).unwrap_or_default();
            let starts = match wrong.message.as_str() {
                "there is no loop to leave here" => line == "break",
                "this loop is inside another loop or an `if`" => {
                    line.starts_with("loop") || line.starts_with("while")
                }
                _ => false,
            };
            prop_assert!(starts, "{}", wrong.render("t", &text, false));
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[a-z0-9=:,.&+<>{}\\[\\]\\n #\"-]{0,200}") {
        if let Err(wrong) = parse(&text) {
            prop_assert!(wrong.iter().all(|wrong| !wrong.render("t", &text, false).is_empty()));
        }
    }
}
