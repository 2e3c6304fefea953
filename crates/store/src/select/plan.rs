//! A plan: the conditions of a selection, made ready for many rows.
//!
//! Ranges of one number become one range; negations go down to the tests; what costs least is
//! tested first, and what costs more only on rows that are still of interest. Rows are judged in
//! blocks of 64, a bit each.

use thiserror::Error;

use remora_offload::cpu::{self, Level};

use super::condition::{RowCondition, TextTest};
use super::range::Range;
use super::regex::RegexError;
use super::rows::{Marks, Rows};
use super::selection::Selection;
use super::text::{Matcher, Text, is_automaton};

/// The most regular expressions of a selection.
pub const REGEXES_MAX: usize = 4;
/// The most pieces of a selection's patterns, between `%`: a row with all of them is judged in some
/// 100 microseconds.
pub const PIECES_MAX: usize = 2048;
/// As many pieces as are made ready for searches while others wait.
const PIECES_LIGHT: usize = 512;

/// Searches of a text that count no more than to read it.
const SEARCHES_LIGHT: u32 = 16;

/// Why a selection has no plan.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PlanError {
    /// A pattern is none, or too large.
    #[error(transparent)]
    Regex(#[from] RegexError),
    /// There are too many regular expressions.
    #[error("a selection has at most {REGEXES_MAX} patterns with `matches` or `_`")]
    TooManyRegexes,
    /// There are too many pieces of patterns.
    #[error("patterns of a selection have at most {PIECES_MAX} pieces between `%`, all together")]
    TooManyPieces,
}

/// Whether a plan of a selection takes long to make: one with a pattern that becomes an automaton,
/// or with many pieces.
pub(crate) fn is_laborious(condition: &RowCondition) -> bool {
    labour(condition) > PIECES_LIGHT
}

/// The pieces that a plan makes ready, at most. An automaton counts as more than are light.
fn labour(condition: &RowCondition) -> usize {
    match condition {
        RowCondition::All(all) | RowCondition::Any(all) => all.iter().map(labour).sum(),
        RowCondition::Not(not) => labour(not),
        RowCondition::Text { test, .. } if is_automaton(test) => PIECES_LIGHT + 1,
        RowCondition::Text { test: TextTest::Like(pattern), .. } => {
            1 + pattern.iter().filter(|byte| **byte == b'%').count()
        }
        RowCondition::Text { test: TextTest::Contains(_), .. } => 1,
        RowCondition::Text { .. } | RowCondition::Within { .. } => 0,
    }
}

/// Which part of a condition is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// What can be judged by so many bytes at a row's begin. The rows may end there.
    Head(u16),
    /// What [`Part::Head`] of as many bytes leaves.
    Rest(u16),
}

/// The conditions of a selection, made ready.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All of these hold for a row that is selected, the cheapest first.
    steps: Vec<Step>,
    /// The fewest bytes of a row.
    row_least: usize,
    /// About what it costs a row, whatever its length, in nanoseconds.
    cost: u32,
    /// How often all of a row's text is gone over.
    searches: u32,
}

#[derive(Clone, Debug)]
struct Step {
    node: Node,
    /// The bytes of a row that it looks at.
    end: u32,
}

#[derive(Clone, Debug)]
enum Node {
    Constant(bool),
    Range(Range),
    Text(Box<Text>),
    All(Vec<Node>),
    Any(Vec<Node>),
}

impl Plan {
    /// The plan of a selection.
    ///
    /// # Errors
    /// A regular expression in it cannot be used.
    pub fn new(selection: &Selection) -> Result<Plan, PlanError> {
        let steps = match compile(&selection.condition, true, &mut Patterns::default())? {
            Node::All(all) => all,
            one => vec![one],
        };
        let (cost, searches) =
            (steps.iter().map(Node::cost).sum(), steps.iter().map(Node::searches).sum());
        let step = |node: Node| Step { end: node.end(), node };
        let steps = steps.into_iter().map(step).collect();
        Ok(Plan { steps, row_least: selection.row_least.into(), cost, searches })
    }

    /// About how many rows are judged in so many nanoseconds: one at least.
    pub(crate) fn rows_in(&self, nanoseconds: u32) -> usize {
        (nanoseconds / self.cost.max(1)).max(1) as usize
    }

    /// So many bytes looked at once take as long as these many, judged: one at least.
    pub(crate) fn bytes_as(&self, bytes: usize) -> usize {
        (bytes / self.searches.max(1) as usize).max(1)
    }

    /// As how many values of its length one counts that is judged where others wait.
    pub(crate) fn weight(&self) -> usize {
        (self.searches / SEARCHES_LIGHT).max(1) as usize
    }

    /// Whether a row is selected.
    #[inline]
    pub fn is_match(&self, row: &[u8]) -> bool {
        self.is_match_part(row, Part::Whole)
    }

    /// Whether a row may be selected, by a part of the conditions.
    #[inline]
    pub fn is_match_part(&self, row: &[u8], part: Part) -> bool {
        row.len() >= self.least(part)
            && self.steps.iter().filter(|step| part.has(step)).all(|step| step.node.holds(row))
    }

    /// Whether a part has any condition.
    pub fn has(&self, part: Part) -> bool {
        self.steps.iter().any(|step| part.has(step))
    }

    /// The bytes of a row that its conditions look at: all of a longer row need not be there.
    pub(crate) fn reach(&self) -> usize {
        self.steps.iter().map(|step| step.end as usize).max().unwrap_or(0)
    }

    /// Marks the rows that are selected, in place of the marks before.
    pub fn mark(&self, rows: &Rows<'_>, marks: &mut Marks) {
        marks.all(rows.count());
        self.mark_part(rows, Part::Whole, marks);
    }

    /// Keeps the marks at rows that may be selected, by a part of the conditions.
    ///
    /// # Panics
    /// There are marks at other than as many rows.
    pub fn mark_part(&self, rows: &Rows<'_>, part: Part, marks: &mut Marks) {
        self.mark_at(cpu::level(), rows, part, marks);
    }

    pub(super) fn mark_at(&self, level: Level, rows: &Rows<'_>, part: Part, marks: &mut Marks) {
        assert_eq!(marks.0.len(), rows.blocks().count(), "there is a mark for each row");
        let least = self.least(part);
        for (rows, mask) in rows.blocks().zip(&mut marks.0) {
            *mask &= rows.long_enough(least);
            for step in self.steps.iter().filter(|step| part.has(step)) {
                if *mask == 0 {
                    break;
                }
                *mask = step.node.mark(&rows, *mask, level);
            }
        }
    }

    /// The fewest bytes of a row of which a part is judged.
    fn least(&self, part: Part) -> usize {
        match part {
            Part::Head(head) => self.row_least.min(head.into()),
            Part::Whole | Part::Rest(_) => self.row_least,
        }
    }
}

impl Part {
    #[inline]
    fn has(self, step: &Step) -> bool {
        match self {
            Part::Whole => true,
            Part::Head(head) => step.end <= head.into(),
            Part::Rest(head) => step.end > head.into(),
        }
    }
}

impl Node {
    fn holds(&self, row: &[u8]) -> bool {
        match self {
            Node::Constant(holds) => *holds,
            Node::Range(range) => range.holds(row),
            Node::Text(text) => text.holds(row),
            Node::All(all) => all.iter().all(|one| one.holds(row)),
            Node::Any(any) => any.iter().any(|one| one.holds(row)),
        }
    }

    /// The rows of a block, of those in `mask`, of which it holds.
    fn mark(&self, rows: &Rows<'_>, mask: u64, level: Level) -> u64 {
        match self {
            Node::Constant(true) => mask,
            Node::Constant(false) => 0,
            Node::Range(range) => range.mark(rows, mask, level),
            Node::Text(text) => text.mark(rows, mask),
            Node::All(all) => {
                let mark = |mask: u64, one: &Node| {
                    if mask == 0 { 0 } else { one.mark(rows, mask, level) }
                };
                all.iter().fold(mask, mark)
            }
            Node::Any(any) => {
                let mark = |found: u64, one: &Node| {
                    let left = mask & !found;
                    if left == 0 { found } else { found | one.mark(rows, left, level) }
                };
                any.iter().fold(0, mark)
            }
        }
    }

    /// The bytes of a row that it looks at.
    fn end(&self) -> u32 {
        match self {
            Node::Constant(_) => 0,
            Node::Range(range) => range.number.end(),
            Node::Text(text) => text.at.end(),
            Node::All(nodes) | Node::Any(nodes) => nodes.iter().map(Node::end).max().unwrap_or(0),
        }
    }

    /// About what it costs a row, in nanoseconds.
    fn cost(&self) -> u32 {
        match self {
            Node::Constant(_) => 0,
            Node::Range(_) => 1,
            Node::Text(text) => match &text.test {
                Matcher::Compare(_, with) => 4 + with.len() as u32 / 32,
                Matcher::Pieces(pieces) => 30 * pieces.count().max(1) as u32,
                Matcher::Regex(_) => 100,
            },
            Node::All(nodes) | Node::Any(nodes) => nodes.iter().map(Node::cost).sum(),
        }
    }

    /// How often it goes over all of a row's text, at the speed of a search for a piece.
    fn searches(&self) -> u32 {
        match self {
            Node::Constant(_) | Node::Range(_) => 0,
            Node::Text(text) => match &text.test {
                Matcher::Compare(..) => 0,
                Matcher::Pieces(_) => 1,
                Matcher::Regex(_) => 2,
            },
            Node::All(nodes) | Node::Any(nodes) => nodes.iter().map(Node::searches).sum(),
        }
    }
}

/// What the patterns of a selection have come to, all together.
#[derive(Default)]
struct Patterns {
    regexes: usize,
    pieces: usize,
}

impl Patterns {
    /// Makes a test ready. It is counted before: it is the making that takes time.
    fn matcher(&mut self, test: &TextTest) -> Result<Matcher, PlanError> {
        self.regexes += usize::from(is_automaton(test));
        if self.regexes > REGEXES_MAX {
            return Err(PlanError::TooManyRegexes);
        }
        let matcher = Matcher::new(test)?;
        if let Matcher::Pieces(pieces) = &matcher {
            self.pieces += pieces.count();
        }
        if self.pieces > PIECES_MAX { Err(PlanError::TooManyPieces) } else { Ok(matcher) }
    }
}

/// The node of a condition, or of its contrary unless it is `wanted`.
fn compile(
    condition: &RowCondition,
    wanted: bool,
    patterns: &mut Patterns,
) -> Result<Node, PlanError> {
    Ok(match condition {
        RowCondition::All(conditions) => join(conditions, wanted, wanted, patterns)?,
        RowCondition::Any(conditions) => join(conditions, wanted, !wanted, patterns)?,
        RowCondition::Not(not) => compile(not, !wanted, patterns)?,
        RowCondition::Within { least, most, .. } if least > most => Node::Constant(!wanted),
        RowCondition::Within { least: i64::MIN, most: i64::MAX, .. } => Node::Constant(wanted),
        RowCondition::Within { number, least, most } => {
            let (number, least, most) = (*number, *least, *most);
            // Outside of a range with an open end is inside of another one.
            let (least, most, inside) = match (wanted, least, most) {
                (false, i64::MIN, most) => (most + 1, i64::MAX, true),
                (false, least, i64::MAX) => (i64::MIN, least - 1, true),
                _ => (least, most, wanted),
            };
            Node::Range(Range { number, least, most, inside })
        }
        RowCondition::Text { text, test } => {
            let test = patterns.matcher(test)?;
            Node::Text(Box::new(Text { at: *text, test, wanted }))
        }
    })
}

/// The node of conditions that hold all, or else of which one holds.
fn join(
    conditions: &[RowCondition],
    wanted: bool,
    all: bool,
    patterns: &mut Patterns,
) -> Result<Node, PlanError> {
    let mut nodes = Vec::with_capacity(conditions.len());
    for condition in conditions {
        match compile(condition, wanted, patterns)? {
            Node::Constant(holds) if holds == all => {}
            Node::Constant(holds) => return Ok(Node::Constant(holds)),
            Node::All(inner) if all => nodes.extend(inner),
            Node::Any(inner) if !all => nodes.extend(inner),
            node => nodes.push(node),
        }
    }
    merge(&mut nodes, all);
    if nodes.iter().any(|node| matches!(node, Node::Constant(holds) if *holds != all)) {
        return Ok(Node::Constant(!all));
    }
    nodes.sort_by_key(Node::cost);
    Ok(match nodes.len() {
        0 => Node::Constant(all),
        1 => nodes.remove(0),
        _ if all => Node::All(nodes),
        _ => Node::Any(nodes),
    })
}

/// Makes one range of ranges of one number: where all hold, of those inside of which keys are
/// wanted; where one holds, of those outside.
fn merge(nodes: &mut Vec<Node>, all: bool) {
    let mut kept: Vec<Node> = Vec::with_capacity(nodes.len());
    for node in nodes.drain(..) {
        let range = match &node {
            Node::Range(range) if range.inside == all => *range,
            _ => {
                kept.push(node);
                continue;
            }
        };
        let same = kept.iter_mut().find_map(|other| match other {
            Node::Range(other) if other.inside == all && other.number == range.number => {
                Some(other)
            }
            _ => None,
        });
        match same {
            Some(other) => {
                other.least = other.least.max(range.least);
                other.most = other.most.min(range.most);
            }
            None => kept.push(node),
        }
    }
    for node in &mut kept {
        if let Node::Range(Range { least, most, inside, .. }) = node
            && least > most
        {
            *node = Node::Constant(!*inside);
        }
    }
    *nodes = kept;
}

#[cfg(test)]
mod tests;
