//! The questions with their accepted answers, and whether a text contains one of them. Pure.

use neptune_cascade::compare::contains_text;
use serde::Deserialize;

/// A question with its right answers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The question, in English.
    pub question: String,
    /// Each of these is right.
    pub answers: Vec<String>,
}

/// The questions of this example, in a fixed order that mixes the topics.
pub fn questions() -> Vec<Question> {
    let lines = include_str!("../questions.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).expect("the file is tested")).collect()
}

impl Question {
    /// Whether a text contains an accepted answer as whole words, in upper or lower case.
    pub fn is_answered_by(&self, text: &str) -> bool {
        self.answers.iter().any(|answer| contains_text(text, answer))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_200_different_questions_with_answers() {
        let questions = questions();
        let different: BTreeSet<_> = questions.iter().map(|question| &question.question).collect();
        assert_eq!((questions.len(), different.len()), (200, 200));
        for question in &questions {
            assert!(!question.answers.is_empty(), "{question:?}");
            assert!(question.answers.iter().all(|answer| question.is_answered_by(answer)));
        }
    }

    #[test]
    fn answer_counts_as_whole_words_only() {
        let question = |answers: &[&str]| Question {
            question: String::new(),
            answers: answers.iter().map(|answer| (*answer).to_owned()).collect(),
        };
        let nine = question(&["9", "nine"]);
        assert!(nine.is_answered_by("It is Nine.") && nine.is_answered_by("4 + 5 = 9"));
        assert!(!nine.is_answered_by("90") && !nine.is_answered_by("nineteen"));
        let city = question(&["Kuala Lumpur"]);
        assert!(city.is_answered_by("**kuala  lumpur**, of course"));
        assert!(!city.is_answered_by("Lumpur Kuala") && !city.is_answered_by(""));
    }
}
