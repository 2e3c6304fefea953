//! Plans: what becomes of conditions, in which order they are tested, and limits.

use proptest::prelude::*;

use super::*;
use crate::select::condition::{Compare, Form, NumberAt, TextAt, TextTest};
use crate::select::rows::Span;
use crate::select::selection::Output;

/// Bytes of the fixed part of the rows of these tests: a number in each form, and two texts.
const FIXED: u16 = 8 + 4 + 2 + 1 + 3 + 6;

fn plan(condition: RowCondition) -> Result<Plan, PlanError> {
    let output = Output::Whole;
    Plan::new(&Selection { row_least: FIXED, condition, output, limit: u64::MAX })
}

fn nodes(plan: Result<Plan, PlanError>) -> Vec<Node> {
    plan.unwrap().steps.into_iter().map(|step| step.node).collect()
}

/// Whether a condition holds, by its definition.
fn holds(condition: &RowCondition, row: &[u8]) -> bool {
    match condition {
        RowCondition::All(all) => all.iter().all(|one| holds(one, row)),
        RowCondition::Any(any) => any.iter().any(|one| holds(one, row)),
        RowCondition::Not(not) => !holds(not, row),
        RowCondition::Within { number, least, most } => (*least..=*most).contains(&number.key(row)),
        RowCondition::Text { text, test } => {
            let text = text.of(row);
            match test {
                TextTest::Compare(compare, with) => compare.holds(text.cmp(with)),
                TextTest::Like(pattern) => is_like(pattern, text),
                TextTest::Contains(part) => {
                    part.is_empty() || text.windows(part.len()).any(|window| window == &**part)
                }
                TextTest::Matches(pattern) => {
                    let known = PATTERNS.iter().find(|(known, _)| *known == &**pattern);
                    known.is_some_and(|(_, is_match)| is_match(text))
                }
            }
        }
    }
}

type IsMatch = fn(&[u8]) -> bool;
const PATTERNS: [(&str, IsMatch); 4] = [
    ("^a", |text| text.starts_with(b"a")),
    ("b$", |text| text.ends_with(b"b")),
    ("a.*b", |text| {
        let first = text.iter().position(|byte| *byte == b'a');
        first.is_some_and(|first| text[first..].contains(&b'b'))
    }),
    ("[bc]a", |text| text.windows(2).any(|pair| pair[1] == b'a' && matches!(pair[0], b'b' | b'c'))),
];

/// LIKE by trying everything. A character has all the bytes that may follow its first one.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'%', rest @ ..] => (0..=text.len()).any(|skipped| is_like(rest, &text[skipped..])),
        [b'_', rest @ ..] => {
            let Some((first, behind)) = text.split_first() else { return false };
            let following = behind.iter().take_while(|byte| (0x80..0xC0).contains(*byte)).count();
            match first {
                0..0x80 => is_like(rest, behind),
                0x80..0xC0 => false,
                _ => (0..=following).any(|some| is_like(rest, &behind[some..])),
            }
        }
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => {
            text.first() == Some(byte) && is_like(rest, &text[1..])
        }
    }
}

/// Numbers whose edges are likely.
fn keys() -> impl Strategy<Value = i64> {
    let edges = prop::sample::select(vec![i64::MIN, i64::MIN + 2, -128, -1, 0, 1, 127, i64::MAX]);
    prop_oneof![2 => -4i64..6, 1 => edges]
}

fn letters(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"aabc".to_vec()), 0..=max)
}

fn numbers() -> impl Strategy<Value = NumberAt> {
    let forms = [
        (0, Form::Signed(8)),
        (0, Form::Unsigned(8)),
        (8, Form::Signed(4)),
        (8, Form::Unsigned(4)),
        (12, Form::Signed(2)),
        (12, Form::Unsigned(2)),
        (14, Form::Signed(1)),
        (14, Form::Unsigned(1)),
        (15, Form::Letters(3)),
    ];
    prop::sample::select(forms.map(|(offset, form)| NumberAt { offset, form }).to_vec())
}

fn conditions() -> impl Strategy<Value = RowCondition> {
    let within = (numbers(), keys(), keys())
        .prop_map(|(number, least, most)| RowCondition::Within { number, least, most });
    let places = [(18, Some(6)), (15, Some(3)), (FIXED, None), (18, None)];
    let places = places.map(|(offset, len)| TextAt { offset, len });
    let patterns = prop::collection::vec(prop::sample::select(b"aabc%%_\\".to_vec()), 0..6);
    let compares = [Compare::Equal, Compare::NotEqual, Compare::Less, Compare::GreaterOrEqual];
    let tests = prop_oneof![
        (prop::sample::select(compares.to_vec()), letters(4))
            .prop_map(|(compare, with)| TextTest::Compare(compare, with.into())),
        patterns.prop_map(|pattern| TextTest::Like(pattern.into())),
        letters(3).prop_map(|part| TextTest::Contains(part.into())),
        (0..PATTERNS.len()).prop_map(|which| TextTest::Matches(PATTERNS[which].0.into())),
    ];
    let texts = (prop::sample::select(places.to_vec()), tests)
        .prop_map(|(text, test)| RowCondition::Text { text, test });
    let one = prop_oneof![2 => within, 1 => texts];
    one.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 0..4).prop_map(RowCondition::All),
            2 => prop::collection::vec(inner.clone(), 0..4).prop_map(RowCondition::Any),
            1 => inner.prop_map(|one| RowCondition::Not(Box::new(one))),
        ]
    })
}

/// A row, and bytes between it and the next one.
fn rows() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    let fixed = (keys(), keys(), letters(3), letters(6)).prop_map(|(long, short, three, six)| {
        let mut row = long.to_le_bytes().to_vec();
        row.extend((short as i32).to_le_bytes());
        row.extend((short as i16).to_le_bytes());
        row.push(long as u8);
        row.extend(three.iter().copied().chain([0; 3]).take(3));
        row.extend(six.iter().copied().chain([0; 6]).take(6));
        row
    });
    let text = letters(12);
    let cut = prop_oneof![9 => Just(usize::MAX), 1 => 0usize..30];
    let row = (fixed, text, cut).prop_map(|(mut row, text, cut)| {
        row.extend(text);
        row.truncate(cut);
        row
    });
    prop::collection::vec((row, letters(5)), 0..150)
}

/// Whether rows are marked as they should be, at each level, in one part or two.
fn check(plan: &Plan, rows: &Rows<'_>, head: u16, expected: &[usize]) -> Result<(), TestCaseError> {
    let mut marks = Marks::default();
    for level in Level::all() {
        marks.all(rows.count());
        plan.mark_at(level, rows, Part::Whole, &mut marks);
        prop_assert_eq!(&marks.iter().collect::<Vec<_>>()[..], expected, "{}", level);
        marks.all(rows.count());
        plan.mark_at(level, rows, Part::Head(head), &mut marks);
        prop_assert!(marks.count() as usize >= expected.len());
        plan.mark_at(level, rows, Part::Rest(head), &mut marks);
        prop_assert_eq!(&marks.iter().collect::<Vec<_>>()[..], expected, "{} by parts", level);
    }
    for row in 0..rows.count() {
        prop_assert_eq!(plan.is_match(rows.row(row)), expected.contains(&row));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn rows_are_selected_as_the_definition_says(
        condition in conditions(), listed in rows(), len in FIXED..FIXED + 12, head in 0..FIXED + 3,
    ) {
        let plan = match plan(condition.clone()) {
            Ok(plan) => plan,
            Err(error) => {
                prop_assert_eq!(error, PlanError::TooManyRegexes);
                return Ok(());
            }
        };
        let is_selected = |row: &[u8]| row.len() >= FIXED.into() && holds(&condition, row);
        let (mut bytes, mut spans) = (vec![], vec![]);
        for (row, gap) in &listed {
            spans.push(Span { start: bytes.len() as u32, len: row.len() as u32 });
            bytes.extend(row);
            bytes.extend(gap);
        }
        let rows = Rows::listed(&bytes, &spans);
        let expected = |rows: &Rows<'_>| -> Vec<usize> {
            (0..rows.count()).filter(|row| is_selected(rows.row(*row))).collect()
        };
        check(&plan, &rows, head, &expected(&rows))?;
        spans.reverse();
        let rows = Rows::listed(&bytes, &spans);
        check(&plan, &rows, head, &expected(&rows))?;
        let rows = Rows::packed(&bytes, len.into());
        check(&plan, &rows, head, &expected(&rows))?;
    }
}

#[test]
fn ranges_of_one_number_become_one() {
    let number = NumberAt { offset: 0, form: Form::Signed(8) };
    let within = |least, most| RowCondition::Within { number, least, most };
    let not = |condition| RowCondition::Not(Box::new(condition));
    let steps = |condition| nodes(plan(condition));
    let between = [not(within(i64::MIN, 4)), within(i64::MIN, 9), not(within(9, i64::MAX))];
    let between = steps(RowCondition::All(between.into()));
    assert!(matches!(between[..], [Node::Range(Range { least: 5, most: 8, inside: true, .. })]));
    let outside = [not(within(5, 8)), not(within(9, i64::MAX))];
    assert_eq!(steps(RowCondition::All(outside.into())).len(), 2, "a hole is tested for itself");
    let empty = steps(RowCondition::All(vec![within(5, i64::MAX), within(i64::MIN, 4)]));
    assert!(matches!(empty[..], [Node::Constant(false)]));
}

#[test]
fn what_costs_less_is_tested_first() {
    let number = NumberAt { offset: 0, form: Form::Signed(8) };
    let text = |test| RowCondition::Text { text: TextAt { offset: FIXED, len: None }, test };
    let all = RowCondition::All(vec![
        text(TextTest::Matches("a".into())),
        text(TextTest::Contains((*b"a").into())),
        RowCondition::Within { number, least: 0, most: 1 },
    ]);
    let plan = plan(all).unwrap();
    let nodes = nodes(Ok(plan.clone()));
    assert!(matches!(nodes[..], [Node::Range(_), Node::Text(_), Node::Text(_)]));
    assert!(plan.has(Part::Head(8)) && plan.has(Part::Rest(8)) && !plan.has(Part::Head(7)));
}

#[test]
fn there_are_few_regular_expressions() {
    let text = TextAt { offset: FIXED, len: None };
    let one = |pattern: &str| RowCondition::Text {
        text,
        test: TextTest::Like(pattern.as_bytes().into()),
    };
    assert!(plan(RowCondition::All(vec![one("_"); REGEXES_MAX])).is_ok());
    let refused = plan(RowCondition::All(vec![one("_"); REGEXES_MAX + 1]));
    assert!(matches!(refused, Err(PlanError::TooManyRegexes)));
    assert!(plan(RowCondition::All(vec![one("%"); REGEXES_MAX + 1])).is_ok());
    // They are counted before they are made.
    let wrong = RowCondition::Text { text, test: TextTest::Matches("(".into()) };
    let mut all = vec![one("_"); REGEXES_MAX];
    all.push(wrong);
    assert_eq!(plan(RowCondition::All(all)).unwrap_err(), PlanError::TooManyRegexes);
    assert!(plan(RowCondition::All(vec![one(r"\_"); REGEXES_MAX + 1])).is_ok());
}

/// Each piece of a pattern is a search, of which a short row may have as many as it has bytes.
#[test]
fn pieces_of_a_pattern_cost_as_searches() {
    let text = TextAt { offset: FIXED, len: None };
    let one = |pattern: &str| RowCondition::Text {
        text,
        test: TextTest::Like(pattern.as_bytes().into()),
    };
    let rows = |pattern: &str| plan(one(pattern)).unwrap().rows_in(300_000);
    assert_eq!((rows("%a%"), rows("%"), rows("a%")), (10_000, 10_000, 10_000));
    assert_eq!((rows("a%b"), rows("%a%b%"), rows("a%%b%c%")), (5_000, 5_000, 3_333));
    let many = one(&format!("%{}", "a%".repeat(500)));
    assert!(is_laborious(&RowCondition::Any(vec![many.clone(); 2])));
    assert!(!is_laborious(&RowCondition::Any(vec![one("%a%b%"); 100])));
    assert!(plan(RowCondition::Any(vec![many.clone(); 4])).is_ok());
    let refused = plan(RowCondition::Any(vec![many; 5]));
    assert!(refused.unwrap_err().to_string().contains("pieces"));
}
