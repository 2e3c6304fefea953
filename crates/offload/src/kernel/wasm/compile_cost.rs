//! What it costs to compile a module, as an estimate.
//!
//! A compiler takes longer than in proportion to a function's length: where control flow branches
//! or meets, it looks at the values that are alive there, for each loop around it once more. A
//! module of some kilobytes can be made to take minutes. What compilers emit is far from that.
//!
//! A unit is about a microsecond of an ordinary core, with a compiler that is optimised a little.
//! The estimate rather errs upwards, and is the same on every machine.

use core::fmt;

use wasmparser::{BinaryReaderError, CompositeInnerType, Operator, TypeSectionReader};

/// What the function costs that counts a bulk instruction.
pub(super) const COUNTED: u64 = 2500;
/// What a function costs, whatever is in it.
const FUNCTION: u64 = 300;
/// What a type costs, and each of its parameters and results.
const TYPE: u64 = 50;
const TYPE_VALUE: u64 = 12;
/// What it costs to take a value over a branch or call.
const MOVED: u64 = 7;

/// What the types of a module cost: each has code by which the host calls functions of it.
///
/// # Errors
/// The section is malformed.
pub(super) fn types(section: TypeSectionReader<'_>) -> Result<u64, BinaryReaderError> {
    let mut cost = 0;
    for group in section {
        for of in group?.types() {
            let values = match &of.composite_type.inner {
                CompositeInnerType::Func(of) => of.params().len() + of.results().len(),
                _ => 0,
            };
            cost += TYPE + TYPE_VALUE * values as u64;
        }
    }
    Ok(cost)
}

/// What a function costs, instruction by instruction.
pub(super) struct FunctionCost {
    index: u32,
    /// What its instructions cost for themselves.
    flat: u64,
    /// Ways that control flow may take.
    ways: u64,
    /// The most values that are alive anywhere: its locals and operands.
    alive: u64,
    locals: u32,
    /// For each open block, whether it is a loop.
    open: Vec<bool>,
    /// The loops that are open, and the most that ever were.
    loops: u64,
    deepest: u64,
}

impl FunctionCost {
    /// The cost of function `index`, which has so many locals, without its instructions.
    pub(super) fn new(index: u32, locals: u32) -> FunctionCost {
        FunctionCost {
            index,
            flat: FUNCTION,
            ways: 0,
            alive: locals.into(),
            locals,
            open: Vec::new(),
            loops: 0,
            deepest: 0,
        }
    }

    /// Adds an instruction that takes and gives `moved` values, with `height` operands on the
    /// stack.
    pub(super) fn add(&mut self, operator: &Operator<'_>, moved: u32, height: u32) {
        self.alive = self.alive.max(u64::from(self.locals) + u64::from(height));
        match operator {
            Operator::Block { .. } | Operator::If { .. } => self.open.push(false),
            Operator::Loop { .. } => {
                self.open.push(true);
                self.loops += 1;
                self.deepest = self.deepest.max(self.loops);
            }
            Operator::End => self.loops -= u64::from(self.open.pop().unwrap_or(false)),
            _ => {}
        }
        let ways = ways(operator);
        self.ways += ways;
        let moves = ways.max(calls(operator).into());
        self.flat = self.flat.saturating_add(flat(operator) + moves * u64::from(moved) * MOVED);
    }

    /// What the instructions so far cost together.
    pub(super) fn total(&self) -> u64 {
        // The constants are fitted to functions of one kind each: with many branches, many locals,
        // deep loops.
        let branches = u128::from(self.ways).pow(2);
        let values = u128::from(self.alive) + 100;
        let loops = u128::from(self.deepest) + 32;
        let joined = branches.saturating_mul(values).saturating_mul(loops) >> 19;
        self.flat.saturating_add(u64::try_from(joined).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for FunctionCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FunctionCost { index, ways, alive, deepest, .. } = self;
        let total = self.total();
        write!(
            f,
            "{total} of it in its function {index}, which has {ways} branches, up to {alive} \
             values alive at each, and {deepest} loops within each other"
        )
    }
}

/// Whether an operator calls a function.
fn calls(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
    )
}

/// How many ways control flow may take at an operator; 0 if it just goes on.
fn ways(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::Block { .. }
        | Operator::Loop { .. }
        | Operator::If { .. }
        | Operator::Else
        | Operator::End
        | Operator::Br { .. }
        | Operator::BrIf { .. }
        | Operator::Return => 1,
        Operator::BrTable { targets } => u64::from(targets.len()) + 1,
        _ => 0,
    }
}

/// What an operator costs, wherever it stands.
fn flat(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::LocalGet { .. }
        | Operator::LocalSet { .. }
        | Operator::LocalTee { .. }
        | Operator::I32Const { .. }
        | Operator::I64Const { .. }
        | Operator::Drop
        | Operator::Nop => 1,
        Operator::CallIndirect { .. } | Operator::ReturnCallIndirect { .. } => 200,
        // Most are a few instructions of the machine; those of memory check bounds.
        _ => 30,
    }
}
