package tide;

public final class Sum {
    public static int of(int a, int b) {
        return a + b;
    }

    public static void main(String[] words) {
        System.out.println("sum " + of(40, 2));
    }
}
